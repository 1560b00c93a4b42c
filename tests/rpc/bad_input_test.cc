// Bad input gets a clear error: a code, a typed reason, a text that names the values and the cure.
// Nothing is allocated or lost by it, and the server serves on.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::HasSubstr;

struct BadCase {
  std::string name;
  std::function<grpc::Status(const WireClient&)> call;
  grpc::StatusCode code;
  v1::OpError::Reason reason;
  std::vector<std::string> says;  // each in the message
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

// --- Shorthands for the calls of the table below.

using Call = std::function<grpc::Status(const WireClient&)>;

Call Create(const std::string& text) {
  return [text](const WireClient& client) { return client.Create(text).status; };
}
Call Apply(const std::string& text) {
  return [text](const WireClient& client) { return client.Apply(text).status; };
}
Call MatMul(const std::string& text) {
  return [text](const WireClient& client) { return client.MatMul(text).status; };
}
Call Dense(const std::string& text) {
  return [text](const WireClient& client) { return client.Dense(text).status; };
}
Call Copy(const std::string& text) {
  return [text](const WireClient& client) { return client.Copy(text).status; };
}
Call EnsureOn(const std::string& text) {
  return [text](const WireClient& client) { return client.EnsureOn(text).status; };
}
Call List(const std::string& text) {
  return [text](const WireClient& client) { return client.List(text).status; };
}
Call Open(const std::string& text) {
  return [text](const WireClient& client) { return client.Open(text).status; };
}
Call Fetch(uint64_t id) {
  return [id](const WireClient& client) { return client.Fetch(id).status; };
}
Call Device(const std::string& name) {
  return [name](const WireClient& client) {
    v1::GetDeviceRequest request;
    request.set_name(name);
    return client.Call(*client.devices, &v1::DeviceService::Stub::GetDevice, request).status;
  };
}
Call Watch(double interval_seconds) {
  return [interval_seconds](const WireClient& client) {
    grpc::ClientContext context;
    v1::WatchDevicesRequest request;
    request.set_interval_seconds(interval_seconds);
    v1::ListDevicesReply reply;
    const auto reader = client.devices->WatchDevices(&context, request);
    EXPECT_FALSE(reader->Read(&reply));
    return reader->Finish();
  };
}
Call Download(const std::string& text) {
  return [text](const WireClient& client) {
    grpc::ClientContext context;
    v1::DownloadReply reply;
    const auto reader = client.tensors->Download(&context, Parse<v1::DownloadRequest>(text));
    EXPECT_FALSE(reader->Read(&reply));
    return reader->Finish();
  };
}
// Enumerations with numbers that have no name.
grpc::Status CreateDType99(const WireClient& client) {
  v1::Create request;
  request.set_dtype(static_cast<v1::DType>(99));
  return client.Call(*client.tensors, &v1::TensorService::Stub::CreateTensor, request).status;
}
grpc::Status DenseActivation77(const WireClient& client) {
  v1::DenseRequest request = Parse<v1::DenseRequest>("x: 1 w: 3");
  request.set_activation(static_cast<v1::Activation>(77));
  return client.Call(*client.compute, &v1::ComputeService::Stub::Dense, request).status;
}
grpc::Status InTheSessionOfNobody(const WireClient& client) {
  return WireClient(client.channel(), "0123456789abcdef0123456789abcdef").Fetch(1).status;
}
// 300,000 numbers: 1.2 MB of f32, 2.4 MB as a message.
grpc::Status CreateWithTooManyValues(const WireClient& client) {
  v1::Create request;
  request.add_shape(300'000);
  for (int i = 0; i < 300'000; ++i) {
    request.mutable_values()->add_numbers(1);
  }
  return client.Call(*client.tensors, &v1::TensorService::Stub::CreateTensor, request).status;
}

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

constexpr auto kInvalid = grpc::INVALID_ARGUMENT;
constexpr auto kExhausted = grpc::RESOURCE_EXHAUSTED;
constexpr auto kNoTensor = v1::OpError::NO_SUCH_TENSOR;
constexpr auto kNoDevice = v1::OpError::NO_SUCH_DEVICE;
constexpr auto kNoOp = v1::OpError::NO_SUCH_OP;
constexpr auto kMismatch = v1::OpError::SHAPE_MISMATCH;
constexpr auto kNoReason = v1::OpError::REASON_UNSPECIFIED;

// The fixture's tensors: 1 f32[2,3] on gpu:0, 2 f32[2,3] on gpu:1, 3 f32[3,2] on gpu:0, 4 i32[2,3]
// on gpu:0, 5 f32[300000] on cpu:0.
std::vector<BadCase> BadHandles() {
  return {
      {"UnknownHandle",
       Apply("name: 'neg' inputs: 99"),
       grpc::NOT_FOUND,
       kNoTensor,
       {"neg: ", "no tensor 99", "ListTensors"}},
      {"UnknownSecondHandle", MatMul("a: 1 b: 98"), grpc::NOT_FOUND, kNoTensor, {"no tensor 98"}},
      {"HandleZero", Fetch(0), grpc::NOT_FOUND, kNoTensor, {"handle 0"}},
      {"MatMulWithoutOperands", MatMul(""), grpc::NOT_FOUND, kNoTensor, {"matmul", "handle 0"}},
      {"DenseWithoutWeights", Dense("x: 1"), grpc::NOT_FOUND, kNoTensor, {"dense", "handle 0"}},
      {"CopyOfNothing", Copy("device: 'gpu:1'"), grpc::NOT_FOUND, kNoTensor, {"handle 0"}},
      {"EnsureOnOfNothing",
       EnsureOn("source: 77 device: 'gpu:1'"),
       grpc::NOT_FOUND,
       kNoTensor,
       {"no tensor 77"}},
      {"DownloadOfNothing", Download("id: 77"), grpc::NOT_FOUND, kNoTensor, {"no tensor 77"}},
      {"LargestHandle",
       Fetch(~uint64_t{0}),
       grpc::NOT_FOUND,
       kNoTensor,
       {"no tensor 18446744073709551615"}},
      {"SessionOfNobody",
       InTheSessionOfNobody,
       grpc::NOT_FOUND,
       v1::OpError::SESSION_EXPIRED,
       {"OpenSession"}},
  };
}

std::vector<BadCase> BadDevices() {
  return {
      {"DeviceThatIsNotHere",
       Create("device: 'gpu:7'"),
       grpc::NOT_FOUND,
       kNoDevice,
       {"'gpu:7'", "cpu:0, gpu:0, gpu:1"}},
      {"SecondCpu",
       Device("cpu:1"),
       grpc::NOT_FOUND,
       kNoDevice,
       {"'cpu:1'", "cpu:0, gpu:0, gpu:1"}},
      {"NoDeviceName", Copy("source: 1 device: 'tpu:0'"), kInvalid, kNoDevice, {"tpu:0", "gpu:N"}},
      {"NegativeDevice", Create("device: 'gpu:-1'"), kInvalid, kNoDevice, {"gpu:-1"}},
      {"AnotherServersDevice",
       EnsureOn("source: 1 device: 'b/gpu:0'"),
       grpc::NOT_FOUND,
       kNoDevice,
       {"b/gpu:0", "server \"b\""}},
      {"LongDeviceName", Device(Repeat("gpu", 100'000)), kInvalid, kNoDevice, {"..."}},
      {"CopyWithoutDevice", Copy("source: 1"), kInvalid, kNoReason, {"no target device", "gpu:1"}},
  };
}

std::vector<BadCase> BadNames() {
  return {
      {"UnknownOp",
       Apply("name: 'convolve' inputs: 1"),
       grpc::NOT_FOUND,
       kNoOp,
       {"'convolve'", "matmul", "softmax"}},
      {"OpWithoutName", Apply("inputs: 1"), grpc::NOT_FOUND, kNoOp, {"''"}},
      // Messages must be valid UTF-8 or a client can't read them: cut between characters, not
      // within one.
      {"LongOpNameOutsideAscii",
       Apply("name: 'x" + Repeat("\u00e9", 100) + "' inputs: 1"),
       grpc::NOT_FOUND,
       kNoOp,
       {"matmul"}},
      {"SourceWithoutInputs",
       Apply("name: 'uniform'"),
       kInvalid,
       kMismatch,
       {"uniform", "CreateTensor"}},
      {"UnknownDType", CreateDType99, kInvalid, v1::OpError::DTYPE_UNSUPPORTED, {"99", "BF16"}},
      {"UnknownActivation", DenseActivation77, kInvalid, kNoReason, {"77", "GELU"}},
      {"DTypeThatTheOpLacks",
       Apply("name: 'exp' inputs: 4"),
       kInvalid,
       v1::OpError::DTYPE_UNSUPPORTED,
       {"exp", "i32"}},
      {"ListOfAnUnknownDevice", List("device: 'gpu:3'"), grpc::NOT_FOUND, kNoDevice, {"gpu:3"}},
      {"PageTokenOfSomebodyElse",
       List("page_token: 'x" + Repeat("\u00e9", 100) + "'"),
       kInvalid,
       kNoReason,
       {"page_token", "next_page_token"}},
      {"LongLabel",
       Create("label: '" + Repeat("x", 257) + "'"),
       kInvalid,
       kNoReason,
       {"257", "256", "limits.label_bytes"}},
      {"LongSessionName",
       Open("name: '" + Repeat("x", 257) + "'"),
       kInvalid,
       kNoReason,
       {"257", "256"}},
  };
}

std::vector<BadCase> BadOperands() {
  return {
      {"MismatchedShapes",
       Apply("name: 'add' inputs: [1, 3]"),
       kInvalid,
       kMismatch,
       {"add", "[2,3]", "[3,2]"}},
      {"InnerSizesDiffer", MatMul("a: 1 b: 1"), kInvalid, kMismatch, {"matmul", "[2,3]"}},
      {"MixedDTypes",
       Apply("name: 'add' inputs: [1, 4]"),
       kInvalid,
       v1::OpError::DTYPE_UNSUPPORTED,
       {"f32[2,3]", "i32[2,3]"}},
  };
}

std::vector<BadCase> BadDims() {
  return {
      {"NegativeDim", Create("shape: [2, -3]"), kInvalid, kMismatch, {"[2,-3]", "negative"}},
      {"OverflowOfFive",
       Create("shape: [2147483648, 2147483648, 2147483648, 2147483648, 2147483648]"),
       kInvalid,
       kMismatch,
       {"2147483648", "elements"}},
      {"OverflowOfOne",
       Create("shape: 4611686018427387906 dtype: I64"),
       kInvalid,
       kMismatch,
       {"4611686018427387906"}},
      {"OverflowBehindAZero",
       Create("shape: [0, 4611686018427387904, 4]"),
       kInvalid,
       kMismatch,
       {"elements"}},
      {"NineDims",
       Create("shape: [1, 1, 1, 1, 1, 1, 1, 1, 1]"),
       kInvalid,
       kMismatch,
       {"9 dimensions", "8"}},
      {"ThousandsOfDims", Create(Repeat("shape: 1 ", 20'000)), kInvalid, kMismatch, {"20000"}},
  };
}

std::vector<BadCase> BadValues() {
  return {
      {"TooFewValues",
       Create("shape: [2, 2] values { numbers: [1, 2, 3] }"),
       kInvalid,
       kMismatch,
       {"f32[2,2]", "4", "3"}},
      {"TooManyValues",
       Create("values { numbers: [1, 2] }"),
       kInvalid,
       kMismatch,
       {"f32[]", "1", "2"}},
      {"NoValues", Create("shape: 1 values {}"), kInvalid, kMismatch, {"f32[1]", "0"}},
      {"RawOfTheWrongSize",
       Create("shape: 2 values { raw: 'abcdefg' }"),
       kInvalid,
       kMismatch,
       {"8 bytes", "7"}},
      {"ValuesTwice",
       Create("shape: 1 values { numbers: 1 integers: 1 }"),
       kInvalid,
       kNoReason,
       {"one of numbers, integers and raw"}},
      {"FractionForAnInteger",
       Create("shape: 2 dtype: I32 values { numbers: [1, 1.5] }"),
       kInvalid,
       kNoReason,
       {"value 1", "1.5", "i32"}},
      {"NanForAnInteger",
       Create("shape: 1 dtype: I64 values { numbers: nan }"),
       kInvalid,
       kNoReason,
       {"nan", "i64"}},
      {"ByteThatIsTooLarge",
       Create("shape: 1 dtype: U8 values { integers: 256 }"),
       kInvalid,
       kNoReason,
       {"256", "u8"}},
      {"BoolThatIsTwo",
       Create("shape: 1 dtype: BOOL values { raw: '\\002' }"),
       kInvalid,
       kNoReason,
       {"bool"}},
      {"EyeOfFalse", Create("shape: [2, 2] eye: false"), kInvalid, kNoReason, {"eye"}},
      {"EyeOfAVector", Create("shape: 2 eye: true"), kInvalid, kMismatch, {"eye", "[2]"}},
  };
}

std::vector<BadCase> BadAttributes() {
  return {
      {"AxisOutOfRange",
       Apply("name: 'sum' inputs: 1 attributes { axes: 2 }"),
       kInvalid,
       kMismatch,
       {"sum", "2"}},
      {"AxisTwice",
       Apply("name: 'sum' inputs: 1 attributes { axes: [0, -2] }"),
       kInvalid,
       kMismatch,
       {"sum"}},
      {"SixtyFiveAxes",
       Apply("name: 'sum' inputs: 1 attributes {" + Repeat(" axes: 0", 65) + "}"),
       kInvalid,
       kNoReason,
       {"axes", "65", "64"}},
      {"ReshapeToAnotherCount",
       Apply("name: 'reshape' inputs: 1 attributes { shape: [4] }"),
       kInvalid,
       kMismatch,
       {"reshape", "[2,3]", "[4]"}},
      {"ThreeInputsForAdd",
       Apply("name: 'add' inputs: [1, 1, 1]"),
       kInvalid,
       kMismatch,
       {"add", "3"}},
      {"RangeBehindTheEnd",
       Download("id: 1 offset_bytes: 20 size_bytes: 5"),
       kInvalid,
       kNoReason,
       {"20", "25", "24"}},
      {"RangeThatOverflows",
       Download("id: 1 offset_bytes: 1 size_bytes: 18446744073709551615"),
       kInvalid,
       kNoReason,
       {"24 bytes"}},
  };
}

std::vector<BadCase> OverLimits() {
  return {
      {"ValuesForTheStream",
       CreateWithTooManyValues,
       kExhausted,
       v1::OpError::LIMIT,
       {"1200000", "1048576", "limits.inline_bytes", "Upload"}},
      {"FetchForTheStream",
       Fetch(5),
       kExhausted,
       v1::OpError::LIMIT,
       {"1200000", "limits.inline_bytes", "Download"}},
      {"LargerThanTheDevice",
       Create("shape: 100000000 device: 'gpu:0'"),
       kExhausted,
       v1::OpError::DEVICE_MEMORY,
       {"gpu:0", "asked 400000000", "limit 268435456"}},
      {"LargestShape",
       Create("shape: 1152921504606846975 dtype: I64"),
       kExhausted,
       v1::OpError::DEVICE_MEMORY,
       {"asked 9223372036854775800"}},
      {"LargeProduct",
       Apply("name: 'add' inputs: [6, 7]"),
       kExhausted,
       v1::OpError::DEVICE_MEMORY,
       {"f32[100000,100000]", "asked 40000000000"}},
      {"CopyAboveItsBound",
       Copy("source: 1 device: 'gpu:1' max_seconds: 1e-12"),
       grpc::FAILED_PRECONDITION,
       v1::OpError::TOO_EXPENSIVE,
       {"tensor 1", "24 bytes", "gpu:0 to gpu:1", "1e-12"}},
      {"CopyWithANegativeBound",
       Copy("source: 1 device: 'gpu:1' max_seconds: -1"),
       grpc::FAILED_PRECONDITION,
       v1::OpError::TOO_EXPENSIVE,
       {"-1"}},
      {"CopyWithABoundThatIsNoNumber",
       Copy("source: 1 device: 'gpu:1' max_seconds: nan"),
       grpc::FAILED_PRECONDITION,
       v1::OpError::TOO_EXPENSIVE,
       {"nan"}},
      {"CopyOfUnknownPrice",
       Copy("source: 5 device: 'cpu:0' max_seconds: 1000"),
       grpc::FAILED_PRECONDITION,
       v1::OpError::TOO_EXPENSIVE,
       {"unknown"}},
  };
}

std::vector<BadCase> BadTimes() {
  return {
      {"WatchTooOften", Watch(0.001), kInvalid, kNoReason, {"0.001", "0.05"}},
      {"WatchOfNan", Watch(NAN), kInvalid, kNoReason, {"nan"}},
      {"NegativeLease", Open("lease_seconds: -1"), kInvalid, kNoReason, {"-1", "lease_seconds"}},
      {"LeaseOfNan", Open("lease_seconds: nan"), kInvalid, kNoReason, {"nan"}},
      {"ProtocolsOfTheFuture",
       Open("protocol_min: 7 protocol_max: 9"),
       grpc::FAILED_PRECONDITION,
       kNoReason,
       {"7 to 9"}},
  };
}

class BadInputTest : public ServerTest, public testing::WithParamInterface<BadCase> {
 protected:
  void SetUp() override {
    client = std::make_unique<WireClient>(server().channel());
    const auto made = client->Run(R"(
      commands { create { id: 1 shape: [2, 3] device: "gpu:0" } }
      commands { create { id: 2 shape: [2, 3] device: "gpu:1" } }
      commands { create { id: 3 shape: [3, 2] device: "gpu:0" } }
      commands { create { id: 4 shape: [2, 3] device: "gpu:0" dtype: I32 } }
      commands { create { id: 5 shape: 300000 } }
      commands { create { id: 6 shape: [100000, 1] device: "gpu:1" } }
      commands { create { id: 7 shape: [1, 100000] device: "gpu:1" } })");
    ASSERT_TRUE(made.ok()) << made.message();
    before = 4 * 24 + 1'200'000 + 800'000;
    ASSERT_TRUE(server().UsedBytesBecome(before));
  }

  // Nothing was allocated or lost, and the server serves.
  void CheckUnharmed() {
    EXPECT_TRUE(server().UsedBytesBecome(before));
    EXPECT_EQ(client->List("").reply.tensors_size(), 7);
    const auto sum = client->Apply("name: 'add' inputs: [1, 1]");
    EXPECT_TRUE(sum.ok()) << sum.message();
  }

  std::unique_ptr<WireClient> client;
  uint64_t before = 0;
};

TEST_P(BadInputTest, IsRefusedClearlyAndHarmsNothing) {
  const BadCase& bad = GetParam();
  const grpc::Status status = bad.call(*client);
  EXPECT_EQ(status.error_code(), bad.code) << status.error_message();
  EXPECT_EQ(v1::OpError::Reason_Name(DetailsFrom(status).reason()),
            v1::OpError::Reason_Name(bad.reason));
  for (const std::string& text : bad.says) {
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }
  CheckUnharmed();
}

std::string NameOf(const testing::TestParamInfo<BadCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Handles, BadInputTest, testing::ValuesIn(BadHandles()), NameOf);
INSTANTIATE_TEST_SUITE_P(Devices, BadInputTest, testing::ValuesIn(BadDevices()), NameOf);
INSTANTIATE_TEST_SUITE_P(Names, BadInputTest, testing::ValuesIn(BadNames()), NameOf);
INSTANTIATE_TEST_SUITE_P(Operands, BadInputTest, testing::ValuesIn(BadOperands()), NameOf);
INSTANTIATE_TEST_SUITE_P(Dims, BadInputTest, testing::ValuesIn(BadDims()), NameOf);
INSTANTIATE_TEST_SUITE_P(Values, BadInputTest, testing::ValuesIn(BadValues()), NameOf);
INSTANTIATE_TEST_SUITE_P(Attributes, BadInputTest, testing::ValuesIn(BadAttributes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Limits, BadInputTest, testing::ValuesIn(OverLimits()), NameOf);
INSTANTIATE_TEST_SUITE_P(Times, BadInputTest, testing::ValuesIn(BadTimes()), NameOf);

using MessageTest = BadInputTest;

TEST_F(MessageTest, MixedDevicesAreRefusedWithTheCopyThatWouldMendIt) {
  const auto mixed = client->Apply("name: 'add' inputs: [1, 2]");
  EXPECT_EQ(mixed.code(), grpc::INVALID_ARGUMENT);
  const v1::OpError error = mixed.error();
  EXPECT_EQ(error.reason(), v1::OpError::DEVICE_MISMATCH);
  for (const std::string text :
       {"tensor 1", "gpu:0", "tensor 2", "gpu:1", "f32[2,3]", "CopyTensor"}) {
    EXPECT_THAT(error.message(), HasSubstr(text));
  }
  EXPECT_EQ(error.cure_quote().size_bytes(), 24u);
  EXPECT_EQ(error.cure_quote().estimated().basis(), v1::Seconds::CONFIGURED);
  EXPECT_GT(error.cure_quote().estimated().value(), 0);
  CheckUnharmed();
  // The cure is a Copy that can be sent as it is, and then the op works.
  v1::Copy cure = error.cure();
  cure.set_id(50);
  ASSERT_TRUE(client->Call(*client->tensors, &v1::TensorService::Stub::CopyTensor, cure).ok());
  const uint64_t other = cure.source() == 1 ? 2 : 1;
  EXPECT_TRUE(client->Apply(absl::StrFormat("name: 'add' inputs: [50, %d]", other)).ok());
}

TEST_F(MessageTest, TheCureMovesTheSmallerTensor) {
  ASSERT_TRUE(client->Create("id: 20 shape: [50, 2, 3] device: 'gpu:0'").ok());
  for (const std::string inputs : {"[20, 2]", "[2, 20]"}) {
    const v1::OpError error = client->Apply("name: 'add' inputs: " + inputs).error();
    EXPECT_EQ(error.cure().source(), 2u);
    EXPECT_EQ(error.cure().device(), "gpu:0");
  }
}

TEST_F(MessageTest, MessagesThatAreNotMessagesAreRefused) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), std::string("\x0a\x7f"), std::string(1000, '\0')}) {
    for (const std::string method :
         {"TensorService/CreateTensor", "TensorService/Download", "TensorService/FetchTensor",
          "ComputeService/MatMul", "ComputeService/Run", "SessionService/OpenSession",
          "DeviceService/WatchDevices"}) {
      SCOPED_TRACE(method);
      RawStream stream(*client, "/devserver.v1." + method);
      stream.Write(bytes);
      stream.WritesDone();
      EXPECT_FALSE(stream.Finish().ok());
    }
  }
  CheckUnharmed();
}

TEST_F(MessageTest, AnExecuteMessageThatIsNoneEndsTheStream) {
  RawStream stream(*client, "/devserver.v1.ComputeService/Execute");
  stream.Write("\xff\xff\xff\xff");
  stream.Write(
      Parse<v1::ExecuteRequest>("commands { number: 1 create { id: 77 } }").SerializeAsString());
  stream.WritesDone();
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("not a devserver.v1.ExecuteRequest"));
  EXPECT_EQ(client->Get(77).code(), grpc::NOT_FOUND);
  CheckUnharmed();
}

TEST_F(MessageTest, AnExecuteMessageOverTheLimitIsToldToUpload) {
  v1::ExecuteRequest request;
  v1::Command* const command = request.add_commands();
  command->set_number(1);
  command->mutable_create()->set_id(77);
  command->mutable_create()->mutable_values()->set_raw(std::string(Limits().message_bytes, 'x'));
  RawStream stream(*client, "/devserver.v1.ComputeService/Execute");
  stream.Write(request.SerializeAsString());
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("TensorService.Upload"));
  const v1::OpError error = DetailsFrom(status);
  EXPECT_EQ(error.reason(), v1::OpError::LIMIT);
  EXPECT_EQ(error.amount().asked(), request.ByteSizeLong());
  EXPECT_EQ(error.amount().limit(), Limits().message_bytes);
  EXPECT_EQ(client->Get(77).code(), grpc::NOT_FOUND);
  CheckUnharmed();
}

TEST_F(MessageTest, AMessageBeyondAllLimitsIsRefused) {
  RawStream stream(*client, "/devserver.v1.TensorService/CreateTensor");
  v1::Create create;
  create.mutable_values()->set_raw(std::string(20 << 20, 'x'));
  stream.Write(create.SerializeAsString());
  EXPECT_EQ(stream.Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  CheckUnharmed();
}

TEST_F(MessageTest, AnUnknownMethodIsUnimplemented) {
  RawStream stream(*client, "/devserver.v1.TensorService/Explode");
  EXPECT_EQ(stream.Finish().error_code(), grpc::UNIMPLEMENTED);
  CheckUnharmed();
}

}  // namespace
}  // namespace devserver
