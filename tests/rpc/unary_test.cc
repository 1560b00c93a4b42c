// The unary calls over the wire: what each does, on every kind of device, for every kind of
// content, dtype and odd shape.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::ElementsAre;
using Numbers = std::vector<double>;

class UnaryTest : public ServerTest {
 protected:
  void SetUp() override { client = std::make_unique<WireClient>(server().channel()); }

  uint64_t Create(const std::string& text) {
    const Outcome<v1::TensorReply> created = client->Create(text);
    EXPECT_TRUE(created.ok()) << text << ": " << created.message();
    return created.reply.tensor().id();
  }

  std::unique_ptr<WireClient> client;
};

TEST_F(UnaryTest, CreateMultiplyAndFetchOnAGpu) {
  const auto a = client->Create("shape: [2, 3] device: 'gpu:1' fill: 2");
  ASSERT_TRUE(a.ok()) << a.message();
  EXPECT_EQ(a.reply.tensor().id(), 1u);  // What a person types.
  EXPECT_EQ(a.reply.tensor().device(), "gpu:1");
  EXPECT_EQ(a.reply.tensor().state(), v1::Tensor::READY);
  EXPECT_EQ(a.reply.tensor().size_bytes(), 24u);
  EXPECT_EQ(server().used_bytes(2), 24u);
  Create("shape: [3, 2] device: 'gpu:1' values { numbers: [1, 2, 3, 4, 5, 6] }");
  const auto product = client->MatMul("a: 1 b: 2");
  ASSERT_TRUE(product.ok()) << product.message();
  EXPECT_EQ(product.reply.tensor().id(), 3u);
  EXPECT_EQ(product.reply.tensor().device(), "gpu:1");
  EXPECT_EQ(client->Numbers(3), (Numbers{18, 24, 18, 24}));
  EXPECT_EQ(client->Delete({1, 2, 3}).reply.freed_bytes(), 24u + 24u + 16u);
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(UnaryTest, MeasuredAndSimulatedTimesAreApart) {
  const auto on_gpu = client->Create("shape: [100] device: 'gpu:0' normal { seed: 1 }");
  EXPECT_GT(on_gpu.reply.measured_seconds(), 0);
  EXPECT_GT(on_gpu.reply.simulated_seconds(), 0);
  EXPECT_FALSE(on_gpu.reply.has_receipt());
  const auto on_cpu = client->Create("shape: [100] normal { seed: 1 }");
  EXPECT_GT(on_cpu.reply.measured_seconds(), 0);
  EXPECT_EQ(on_cpu.reply.simulated_seconds(), 0);
}

TEST_F(UnaryTest, EveryContentMakesItsNumbers) {
  EXPECT_EQ(client->Numbers(Create("shape: [2]")), (Numbers{0, 0}));
  EXPECT_EQ(client->Numbers(Create("fill: 1.5")), (Numbers{1.5}));
  EXPECT_EQ(client->Numbers(Create("shape: [2, 2] eye: true")), (Numbers{1, 0, 0, 1}));
  EXPECT_EQ(client->Numbers(Create("shape: [3] arange {}")), (Numbers{0, 1, 2}));
  EXPECT_EQ(client->Numbers(Create("shape: [3] arange { start: 5 step: -2 }")), (Numbers{5, 3, 1}));
  EXPECT_EQ(client->Numbers(Create("shape: [2] values { numbers: [3, 4] }")), (Numbers{3, 4}));
  EXPECT_EQ(client->Numbers(Create("shape: [2] dtype: U8 values { raw: '\\007\\377' }")),
            (Numbers{7, 255}));
  EXPECT_EQ(client->Numbers(Create("shape: [2] dtype: I32 values { integers: [-1, 7] }")),
            (Numbers{-1, 7}));
}

TEST_F(UnaryTest, RandomNumbersOfASeedAreTheSameOnEveryDevice) {
  for (const std::string content :
       {"uniform { seed: 7 }", "uniform { seed: 7 low: -1 high: 3 }", "normal { seed: 7 }",
        "normal { seed: 7 mean: 2 stddev: 0.5 }"}) {
    SCOPED_TRACE(content);
    const Numbers on_cpu = client->Numbers(Create("shape: [33] " + content));
    const Numbers on_gpu = client->Numbers(Create("shape: [33] device: 'gpu:1' " + content));
    EXPECT_EQ(on_cpu, on_gpu);
    EXPECT_NE(on_cpu[0], on_cpu[1]);
  }
}

TEST_F(UnaryTest, FetchGivesNumbersOrTheirBytes) {
  const uint64_t id = Create("shape: [2] dtype: I32 values { numbers: [-2, 258] }");
  EXPECT_THAT(client->Fetch(id).reply.values().numbers(), ElementsAre(-2, 258));
  EXPECT_EQ(client->Fetch(id, true).reply.values().raw(),
            (std::string("\xfe\xff\xff\xff\x02\x01\x00\x00", 8)));
  EXPECT_EQ(client->Fetch(id).reply.tensor().dtype(), v1::I32);
}

TEST_F(UnaryTest, IntegersBeyond53BitsAreExact) {
  const uint64_t id = Create(
      "shape: [3] dtype: I64 values { integers: [9223372036854775807, -9223372036854775808, "
      "9007199254740993] }");
  EXPECT_THAT(client->Fetch(id).reply.values().integers(),
              ElementsAre(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
                          9007199254740993));
}

TEST_F(UnaryTest, SpecialNumbersKeepTheirBits) {
  for (const std::string dtype : {"F32", "F64", "F16", "BF16"}) {
    SCOPED_TRACE(dtype);
    const uint64_t id = Create("shape: [4] device: 'gpu:0' dtype: " + dtype +
                               " values { numbers: [nan, inf, -inf, -0.0] }");
    const Numbers numbers = client->Numbers(id);
    EXPECT_TRUE(std::isnan(numbers[0]));
    EXPECT_EQ(numbers[1], std::numeric_limits<double>::infinity());
    EXPECT_EQ(numbers[2], -std::numeric_limits<double>::infinity());
    EXPECT_EQ(numbers[3], 0);
    EXPECT_TRUE(std::signbit(numbers[3]));
  }
}

TEST_F(UnaryTest, DenseFusesBiasAndActivation) {
  Create("id: 10 shape: [1, 2] device: 'gpu:0' values { numbers: [1, -2] }");
  Create("id: 11 shape: [2, 2] device: 'gpu:0' values { numbers: [1, 0, 0, 1] }");
  Create("id: 12 shape: [2] device: 'gpu:0' values { numbers: [0.5, 0.5] }");
  EXPECT_EQ(client->Numbers(client->Dense("x: 10 w: 11").reply.tensor().id()), (Numbers{1, -2}));
  EXPECT_EQ(client->Numbers(client->Dense("x: 10 w: 11 bias: 12").reply.tensor().id()),
            (Numbers{1.5, -1.5}));
  EXPECT_EQ(
      client->Numbers(client->Dense("x: 10 w: 11 bias: 12 activation: RELU").reply.tensor().id()),
      (Numbers{1.5, 0}));
}

TEST_F(UnaryTest, MatMulTransposesWhatItIsTold) {
  Create("id: 10 shape: [3, 1] values { numbers: [1, 2, 3] }");
  Create("id: 11 shape: [1, 3] values { numbers: [4, 5, 6] }");
  const auto inner = client->MatMul("a: 10 b: 11 transpose_a: true transpose_b: true id: 12");
  ASSERT_TRUE(inner.ok()) << inner.message();
  EXPECT_EQ(client->Numbers(12), (Numbers{32}));
}

TEST_F(UnaryTest, ApplyReadsItsAttributes) {
  Create("id: 10 shape: [2, 3] device: 'gpu:1' arange {}");
  EXPECT_EQ(
      client->Numbers(
          client->Apply("name: 'sum' inputs: 10 attributes { axes: -1 }").reply.tensor().id()),
      (Numbers{3, 12}));
  const auto slice = client->Apply(
      "name: 'slice' inputs: 10 attributes { starts: [0, 1] stops: [2, 100] } id: 11");
  ASSERT_TRUE(slice.ok()) << slice.message();
  EXPECT_EQ(client->Numbers(11), (Numbers{1, 2, 4, 5}));
  const auto cast = client->Apply("name: 'cast' inputs: 10 attributes { dtype: I64 } id: 12");
  ASSERT_TRUE(cast.ok()) << cast.message();
  EXPECT_EQ(client->Get(12).reply.dtype(), v1::I64);
}

TEST_F(UnaryTest, RunIsABatchWhoseCommandsSeeTheOnesBefore) {
  const auto run = client->Run(R"(
    commands { create { id: 100 shape: [2] device: "gpu:0" fill: 1 } }
    commands { create { id: 101 shape: [2] device: "gpu:0" fill: 2 } }
    commands { op { name: "add" inputs: [100, 101] id: 102 } }
    commands { copy { source: 102 device: "gpu:1" id: 103 } }
    commands { fetch { id: 103 } }
    commands { delete { ids: [100, 101] } }
    commands { sync {} })");
  ASSERT_TRUE(run.ok()) << run.message();
  ASSERT_EQ(run.reply.replies_size(), 7);
  EXPECT_EQ(run.reply.replies(2).tensor().id(), 102u);
  EXPECT_EQ(run.reply.replies(3).tensor().device(), "gpu:1");
  EXPECT_EQ(run.reply.replies(3).receipt().size_bytes(), 8u);
  EXPECT_THAT(run.reply.replies(4).fetched().values().numbers(), ElementsAre(3, 3));
  EXPECT_GT(run.reply.measured_seconds(), 0);
  EXPECT_GT(run.reply.simulated_seconds(), 0);
  EXPECT_EQ(client->List("").reply.tensors_size(), 2);
}

TEST_F(UnaryTest, AFailureInABatchFailsWhatDependsOnItAndNothingElse) {
  const auto run = client->Run(R"(
    commands { create { id: 100 shape: [2] device: "gpu:9" } }
    commands { op { name: "neg" inputs: 100 id: 101 } }
    commands { op { name: "neg" inputs: 101 id: 102 } }
    commands { op { name: "nonsense" inputs: 101 id: 103 } }
    commands { fetch { id: 102 } }
    commands {}
    commands { create { id: 104 fill: 7 } }
    commands { fetch { id: 104 } })");
  ASSERT_TRUE(run.ok()) << run.message();
  ASSERT_EQ(run.reply.replies_size(), 8);
  EXPECT_EQ(run.reply.replies(0).error().reason(), v1::OpError::NO_SUCH_DEVICE);
  for (const int dependent : {1, 2, 4}) {
    const v1::OpError& error = run.reply.replies(dependent).error();
    EXPECT_EQ(error.reason(), v1::OpError::INPUT_FAILED);
    EXPECT_EQ(error.code(), grpc::FAILED_PRECONDITION);
    EXPECT_EQ(error.origin_tensor(), 100u);
    EXPECT_THAT(error.message(), testing::HasSubstr("no device 'gpu:9'"));
  }
  EXPECT_EQ(run.reply.replies(3).error().reason(), v1::OpError::NO_SUCH_OP);
  EXPECT_EQ(run.reply.replies(5).error().code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(run.reply.replies(7).fetched().values().numbers(), ElementsAre(7));
  // The failed handles can be looked at and deleted.
  const auto failed = client->Get(101);
  ASSERT_TRUE(failed.ok()) << failed.message();
  EXPECT_EQ(failed.reply.state(), v1::Tensor::FAILED);
  EXPECT_EQ(failed.reply.error().origin_tensor(), 100u);
  EXPECT_TRUE(client->Delete({100, 101, 102, 103}).ok());
}

TEST_F(UnaryTest, AFailedUnaryCommandLeavesNoHandle) {
  EXPECT_FALSE(client->Create("id: 50 shape: [2] device: 'gpu:9'").ok());
  EXPECT_EQ(client->Get(50).error().reason(), v1::OpError::NO_SUCH_TENSOR);
  // Also one that fails only on the device: two tensors that each would fit, but not together.
  EXPECT_TRUE(client->Create("id: 51 shape: [50000000] device: 'gpu:0'").ok());  // 200 of 256 MiB
  const auto full = client->Create("id: 52 shape: [50000000] device: 'gpu:0'");
  EXPECT_EQ(full.error().reason(), v1::OpError::DEVICE_MEMORY);
  EXPECT_EQ(full.error().amount().asked(), 200000000u);
  EXPECT_EQ(full.error().amount().used(), 200000000u);
  EXPECT_EQ(full.error().amount().limit(), uint64_t{256} << 20);
  EXPECT_EQ(full.error().device(), "gpu:0");
  EXPECT_EQ(client->Get(52).error().reason(), v1::OpError::NO_SUCH_TENSOR);
}

TEST_F(UnaryTest, EnsureOnAFailedTensorTellsTheRootCauseAndKeepsTheHandle) {
  Create("id: 1 shape: [50000000] device: 'gpu:0'");
  // Fails on the device, so that the failed tensor has one.
  const auto run = client->Run("commands { create { id: 2 shape: [50000000] device: 'gpu:0' } }");
  EXPECT_EQ(run.reply.replies(0).error().reason(), v1::OpError::DEVICE_MEMORY);
  for (const std::string device : {"gpu:0", "gpu:1"}) {
    const auto ensured = client->EnsureOn("source: 2 device: '" + device + "'");
    EXPECT_EQ(ensured.code(), grpc::FAILED_PRECONDITION);
    EXPECT_EQ(ensured.error().reason(), v1::OpError::INPUT_FAILED);
    EXPECT_EQ(ensured.error().origin_tensor(), 2u);
  }
  EXPECT_EQ(client->Get(2).reply.state(), v1::Tensor::FAILED);
}

TEST_F(UnaryTest, DeleteIsAllOrNothing) {
  Create("id: 1 shape: [4]");
  Create("id: 2 shape: [4]");
  EXPECT_EQ(client->Delete({1, 99, 2}).error().reason(), v1::OpError::NO_SUCH_TENSOR);
  EXPECT_TRUE(client->Get(1).ok());
  EXPECT_EQ(client->Delete({1, 1, 2}).reply.freed_bytes(), 32u);
  EXPECT_EQ(client->Delete({1}).code(), grpc::NOT_FOUND);
  EXPECT_TRUE(client->Delete({}).ok());
}

struct ShapeCase {
  const char* dims;
  size_t count;
};
class ShapeTest : public UnaryTest, public testing::WithParamInterface<ShapeCase> {};
INSTANTIATE_TEST_SUITE_P(OddShapes, ShapeTest,
                         testing::Values(ShapeCase{"", 1},          // a scalar
                                         ShapeCase{"shape: 0", 0},  // an empty tensor
                                         ShapeCase{"shape: [3, 0, 2]", 0},
                                         ShapeCase{"shape: [1, 1, 1, 1, 1, 1, 1, 1]", 1}));

TEST_P(ShapeTest, GoThroughEveryCall) {
  const std::string shape = GetParam().dims;
  const size_t count = GetParam().count;
  Create("id: 1 device: 'gpu:0' fill: 3 " + shape);
  std::string values;
  for (size_t i = 0; i < count; ++i) {
    values += " numbers: 4";
  }
  Create("id: 2 device: 'gpu:0' " + shape + " values {" + values + "}");
  const auto run = client->Run(R"(
    commands { op { name: "add" inputs: [1, 2] id: 3 } }
    commands { op { name: "softmax" inputs: 3 attributes { axes: -1 } id: 4 } }
    commands { op { name: "sum" inputs: 3 id: 5 } }
    commands { op { name: "reshape" inputs: 3 attributes { )" +
                               shape + R"( } id: 6 } }
    commands { copy { source: 3 device: "gpu:1" id: 7 } }
    commands { fetch { id: 7 } }
    commands { fetch { id: 5 } })");
  ASSERT_TRUE(run.ok()) << run.message();
  for (const int i : {0, 2, 3, 4, 5, 6}) {
    EXPECT_FALSE(run.reply.replies(i).has_error()) << run.reply.replies(i).DebugString();
  }
  EXPECT_EQ(client->Numbers(7), Numbers(count, 7.0));
  EXPECT_THAT(run.reply.replies(6).fetched().values().numbers(), ElementsAre(7.0 * count));
  EXPECT_EQ(run.reply.replies(4).receipt().size_bytes(), 4 * count);
  EXPECT_EQ(client->EnsureOn("source: 7 device: 'gpu:0'").reply.tensor().size_bytes(), 4 * count);
  EXPECT_EQ(client->Get(2).reply.shape_size(), client->Get(7).reply.shape_size());
}

TEST_F(UnaryTest, ACallWithAPassedDeadlineEndsAndLeavesNothing) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  v1::TensorReply reply;
  const grpc::Status status =
      client->tensors->CreateTensor(&context, Parse<v1::Create>("id: 9 shape: [1000]"), &reply);
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(client->Get(9).code(), grpc::NOT_FOUND);  // It never left.
  EXPECT_EQ(server().used_bytes(), 0u);
}

}  // namespace
}  // namespace devserver
