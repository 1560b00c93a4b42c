// Every case of the op suite once more, through the client library, the wire and a server: the bits
// must be those of the device alone, whose results the op suite judges.
//
// ctest: timeout=120
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/ops.h"
#include "tests/client/client_fixture.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/op_cases.h"

namespace devserver::client {
namespace {

using conformance::HostTensor;
using conformance::OpCase;

constexpr uint64_t kSeed = 20261130;

// A source as the library has it; none for shapes that it doesn't make.
std::optional<Tensor> MakeSource(OpCode code, const OpAttributes& attributes,
                                 const Device& device) {
  const IntList& shape = attributes.shape;
  const DType dtype = attributes.dtype;
  switch (code) {
    case OpCode::kFull:
      return full(shape, attributes.value, device, dtype);
    case OpCode::kUniform:
      return uniform(shape, device, {attributes.low, attributes.high, attributes.seed, dtype});
    case OpCode::kNormal:
      return normal(shape, device, {attributes.mean, attributes.stddev, attributes.seed, dtype});
    case OpCode::kArange:
      if (shape.size() == 1) {
        return arange(shape[0], device, attributes.start, attributes.step, dtype);
      }
      break;
    case OpCode::kEye:
      if (shape.size() == 2 && shape[0] == shape[1]) {
        return eye(shape[0], device, dtype);
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

class OpWireTest : public ClientTest {
 protected:
  // How many cases there were.
  int CheckOp(const OpDef& op, DType dtype, const Device& device, devserver::Device& alone) {
    struct Expected {
      Tensor tensor;
      HostTensor result;
      std::string text;
    };
    std::vector<Expected> expected;
    uint64_t seed = kSeed;
    for (const OpCase& test : conformance::CasesOf(op.code, dtype)) {
      const std::vector<HostTensor> inputs = conformance::MakeInputs(test, dtype, ++seed);
      const OpAttributes attributes = conformance::MakeAttributes(test, dtype);
      std::optional<Tensor> tensor;
      if (op.inputs_max == 0) {
        tensor = MakeSource(op.code, attributes, device);
      } else {
        std::vector<Tensor> uploaded;
        for (const HostTensor& input : inputs) {
          uploaded.push_back(upload(input.spec, input.bytes, device));
        }
        tensor = apply(op.code, uploaded, attributes);
      }
      if (!tensor.has_value()) {
        continue;
      }
      absl::StatusOr<HostTensor> result =
          conformance::RunOnDevice(alone, op.code, inputs, attributes);
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) {
        expected.push_back(
            {*tensor, *std::move(result), absl::StrFormat("%s, seed %d", test.ToString(), seed)});
      }
    }
    for (const Expected& one : expected) {
      SCOPED_TRACE(one.text);
      EXPECT_EQ(one.tensor.spec(), one.result.spec);
      std::vector<std::byte> bytes(one.tensor.size_bytes());
      const absl::Status status = one.tensor.fetch_into(bytes);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(bytes, one.result.bytes);
    }
    return static_cast<int>(expected.size());
  }
};

TEST_F(OpWireTest, EveryOpGivesTheBitsOfTheDeviceAlone) {
  const Client client = Connect();
  devserver::Device* const alone = conformance::SharedDevice(conformance::AllBackends()[1]);
  ASSERT_NE(alone, nullptr);
  ASSERT_EQ(alone->properties().kind, devserver::DeviceKind::kSimulated);
  for (const OpDef& op : AllOps()) {
    for (const DType dtype : kAllDTypes) {
      if (op.dtypes.Contains(dtype)) {
        SCOPED_TRACE(absl::StrFormat("%s of %s", op.name, DTypeName(dtype)));
        EXPECT_GT(CheckOp(op, dtype, *client.gpu(0), *alone), 0);
      }
    }
  }
}

}  // namespace
}  // namespace devserver::client
