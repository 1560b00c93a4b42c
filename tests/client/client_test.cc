// The client library against a real server: devices, handles, failures, values.
#include "devserver/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/client/client_fixture.h"

namespace devserver::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_F(ClientTest, AcceptsTheNamesThatPeopleType) {
  const Client client = Connect();
  EXPECT_EQ(client.num_gpus(), 2);
  EXPECT_EQ(client.device("GPU:1")->name(), "gpu:1");
  EXPECT_EQ(client.device("cuda:1")->name(), "gpu:1");
  EXPECT_EQ(client.device("gpu")->name(), "gpu:0");
  EXPECT_EQ(client.device("CPU")->name(), "cpu:0");
  EXPECT_EQ(client.cpu().name(), "cpu:0");
  EXPECT_EQ(client.gpu(1)->name(), "gpu:1");
  EXPECT_TRUE(client.gpu(1)->is_gpu());
  EXPECT_FALSE(client.cpu().is_gpu());
}

TEST_F(ClientTest, AMissingGpuIsNotFoundWithTheListOfDevices) {
  const Client client = Connect();
  const absl::Status status = client.gpu(10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(status), ErrorReason::kNoSuchDevice);
  EXPECT_THAT(Message(status), HasSubstr("cpu:0, gpu:0, gpu:1"));
}

TEST_F(ClientTest, TryGpuSaysWhenItFellBack) {
  const Client client = Connect();
  EXPECT_EQ(client.try_gpu(1).name(), "gpu:1");
  EXPECT_THAT(client.try_gpu(1).note(), IsEmpty());
  EXPECT_EQ(client.try_gpu(10).name(), "cpu:0");
  EXPECT_THAT(client.try_gpu(10).note(), HasSubstr("no device \"gpu:10\""));
  EXPECT_EQ(client.try_all_gpus().size(), 2u);
}

TEST_F(ClientTest, WithoutGpusTryAllGpusIsTheCpu) {
  options.gpus = 0;
  const Client client = Connect();
  ASSERT_EQ(client.try_all_gpus().size(), 1u);
  EXPECT_EQ(client.try_all_gpus()[0].name(), "cpu:0");
  EXPECT_EQ(client.num_gpus(), 0);
}

TEST_F(ClientTest, ConnectToAClosedPortIsUnavailableAndNamesTheAddress) {
  const absl::Status status = Client::connect("127.0.0.1:1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("127.0.0.1:1"));
}

// ggml's and Burn's clients hang here.
TEST_F(ClientTest, ConnectToAServerThatSaysNothingEndsAtTheTimeout) {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent, 1), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ClientOptions client_options;
  client_options.connect_timeout = absl::Milliseconds(300);
  const absl::Status status =
      Client::connect(absl::StrFormat("127.0.0.1:%d", ntohs(address.sin_port)), client_options)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  close(silent);
}

TEST_F(ClientTest, ATensorKnowsItsShapeDtypeAndDeviceWithoutAsking) {
  const Client client = Connect();
  const Tensor a = zeros({2, 3}, *client.gpu(0), DType::kF64);
  const Tensor b = ones({3, 4}, *client.gpu(0), DType::kF64);
  const Tensor c = matmul(a, b);
  EXPECT_EQ(c.spec().ToString(), "f64[2,4]");
  EXPECT_EQ(c.device_name(), "gpu:0");
  EXPECT_EQ(c.size_bytes(), 64u);
  EXPECT_GE(c.id(), uint64_t{1} << 32);
  EXPECT_EQ(argmax(c, {1}).spec().ToString(), "i64[2]");
}

TEST_F(ClientTest, WrongShapesAreKnownAtOnce) {
  const Client client = Connect();
  const Tensor a = zeros({2, 3}, client.cpu());
  const Tensor c = matmul(a, a);
  EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(c.status()), ErrorReason::kShapeMismatch);
  EXPECT_EQ(c.id(), 0u);
  EXPECT_EQ(zeros({2, -1}, client.cpu()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, MixedDevicesAreRefusedWithBothTensorsBothDevicesTheCureAndItsPrice) {
  const Client client = Connect();
  const Tensor x = ones({2, 3}, *client.gpu(0));
  const Tensor y = ones({2, 3}, *client.gpu(1));
  const Tensor mixed = x + y;
  const absl::Status status = mixed.sync();
  EXPECT_EQ(mixed.status(), status);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), ErrorReason::kDeviceMismatch);
  EXPECT_EQ(DetailsOf(status)->cure_source, x.id());
  EXPECT_EQ(DetailsOf(status)->cure_device, "gpu:1");
  EXPECT_EQ(DetailsOf(status)->cure_bytes, 24u);
  EXPECT_GT(DetailsOf(status)->cure_seconds, 0);
  for (const std::string& part :
       {absl::StrFormat("tensor %d (f32[2,3]) is on gpu:0", x.id()),
        absl::StrFormat("tensor %d (f32[2,3]) is on gpu:1", y.id()), std::string("copy_to(gpu:1)"),
        std::string("24 bytes, estimated time 1")}) {
    EXPECT_THAT(Message(status), HasSubstr(part));
  }
  // The cure works.
  EXPECT_THAT(*(x.copy_to(*client.gpu(1)) + y).fetch<float>(), ElementsAre(2, 2, 2, 2, 2, 2));
}

TEST_F(ClientTest, OpsOnATensorThatFailedHereKeepItsRootCause) {
  const Client client = Connect();
  const Tensor bad = matmul(zeros({2, 3}, client.cpu()), zeros({2, 3}, client.cpu()));
  const Tensor later = exp(relu(bad) + 1.0);
  EXPECT_EQ(later.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(later.status()), ErrorReason::kInputFailed);
  EXPECT_THAT(Message(later.status()), HasSubstr(Message(bad.status())));
  EXPECT_EQ(later.fetch<float>().status(), later.status());
  EXPECT_EQ(later.copy_to(*client.gpu(0)).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClientTest, OpsOnATensorThatFailedOnTheServerKeepItsRootCause) {
  options.gpu_memory_bytes = uint64_t{1} << 20;
  const Client client = Connect();
  const Tensor too_large = zeros({1 << 20}, *client.gpu(0));
  const Tensor later = sum(relu(too_large));
  const Tensor other = ones({2}, *client.gpu(0));
  const absl::Status status = later.fetch<float>().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), ErrorReason::kInputFailed) << status;
  EXPECT_EQ(DetailsOf(status)->origin_tensor, too_large.id()) << status;
  EXPECT_EQ(ReasonOf(too_large.status()), ErrorReason::kDeviceMemory) << too_large.status();
  EXPECT_EQ(DetailsOf(too_large.status())->limit, uint64_t{1} << 20);
  // Known by now, so it is refused without asking.
  EXPECT_EQ(exp(too_large).status().code(), absl::StatusCode::kFailedPrecondition);
  // Nobody else suffers.
  EXPECT_THAT(*other.fetch<float>(), ElementsAre(1, 1));
}

TEST_F(ClientTest, ADefaultConstructedTensorFailsEverythingAndNothingAborts) {
  const Client client = Connect();
  const Tensor none;
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(none.sync().ok());
  EXPECT_FALSE(none.fetch<float>().ok());
  EXPECT_FALSE(none.item<float>().ok());
  EXPECT_FALSE(none.receipt().ok());
  EXPECT_FALSE(none.copy_to(client.cpu()).status().ok());
  EXPECT_FALSE((none + 1.0).status().ok());
  EXPECT_FALSE(add(ones({2}, client.cpu()), none).status().ok());
  EXPECT_FALSE(ones({2}, Device()).status().ok());
  EXPECT_FALSE(ones({2}, client.cpu()).copy_to(Device()).status().ok());
  EXPECT_FALSE(concat({}).status().ok());
  EXPECT_THAT(none.to_string(), HasSubstr("default-constructed"));
}

TEST_F(ClientTest, CopyToIsAlwaysANewTensorAndToIsTheSameIfItIsThere) {
  const Client client = Connect();
  const Device gpu = *client.gpu(1);
  const Tensor z = ones({2, 3}, gpu);
  const Tensor copy = z.copy_to(gpu);
  EXPECT_NE(copy.id(), z.id());
  EXPECT_FALSE(copy.same_as(z));
  EXPECT_TRUE(z.to(gpu).same_as(z));
  EXPECT_EQ(z.to(client.cpu()).device_name(), "cpu:0");
}

TEST_F(ClientTest, ACopyHasAReceiptWithItsPrice) {
  const Client client = Connect();
  const Tensor copy = ones({256, 256}, *client.gpu(0)).copy_to(*client.gpu(1));
  const absl::StatusOr<Receipt> receipt = copy.receipt();
  ASSERT_TRUE(receipt.ok()) << receipt.status();
  EXPECT_EQ(receipt->size_bytes, 256u * 256 * 4);
  ASSERT_FALSE(receipt->legs.empty());
  EXPECT_EQ(receipt->legs.front().source, "gpu:0");
  EXPECT_EQ(receipt->legs.back().target, "gpu:1");
  EXPECT_TRUE(receipt->estimated.known());
  EXPECT_TRUE(receipt->simulated.known());
  EXPECT_THAT(receipt->ToString(), HasSubstr("gpu:0 -> gpu:1"));
  EXPECT_EQ(ones({2}, client.cpu()).receipt().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClientTest, ACopyAboveItsPriceLimitIsRefused) {
  const Client client = Connect();
  const Tensor source = ones({256, 256}, *client.gpu(0));
  const Tensor copy = source.copy_to(*client.gpu(1), /*max_seconds=*/1e-12);
  EXPECT_EQ(ReasonOf(copy.sync()), ErrorReason::kTooExpensive) << copy.status();
}

TEST_F(ClientTest, ValuesOfEveryTypeComeBackBitForBit) {
  const Client client = Connect();
  const Device device = *client.gpu(0);
  const std::vector<float> floats = {std::nanf(""), INFINITY, -INFINITY, -0.0f, 1e-45f, 3.5f};
  const absl::StatusOr<std::vector<float>> back = from(floats, {2, 3}, device).fetch<float>();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::memcmp(back->data(), floats.data(), sizeof(float) * 6), 0);
  const std::vector<int64_t> longs = {std::numeric_limits<int64_t>::min(), (int64_t{1} << 53) + 1};
  EXPECT_EQ(*from(longs, {2}, device).fetch<int64_t>(), longs);
  const std::vector<double> doubles = {1e300, -1.0 / 3};
  EXPECT_EQ(*from(doubles, {2}, device).fetch<double>(), doubles);
  EXPECT_THAT(*from<int32_t>({-7}, {}, device).fetch<int32_t>(), ElementsAre(-7));
  EXPECT_THAT(*from<uint8_t>({0, 255}, {2}, device).fetch<uint8_t>(), ElementsAre(0, 255));
  EXPECT_THAT(
      *equal(from<float>({1, 2}, {2}, device), from<float>({1, 3}, {2}, device)).fetch<uint8_t>(),
      ElementsAre(1, 0));
}

TEST_F(ClientTest, HalfPrecisionIsFetchedAsFloatExactly) {
  const Client client = Connect();
  const Tensor x = from<float>({1.5, -2, 65504}, {3}, client.cpu());
  EXPECT_THAT(*cast(x, DType::kF16).fetch<float>(), ElementsAre(1.5, -2, 65504));
  EXPECT_THAT(*cast(x, DType::kBF16).fetch<float>(), ElementsAre(1.5, -2, 65536));
  const absl::Status wrong = cast(x, DType::kF16).fetch<double>().status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(wrong), HasSubstr("cast"));
}

TEST_F(ClientTest, OddShapesAreMadeCopiedUsedAndFetched) {
  const Client client = Connect();
  for (const Dims& shape :
       {Dims{}, Dims{0}, Dims{3, 0, 2}, Dims{1}, Dims{1, 1, 1, 1, 1, 1, 1, 1}}) {
    const Tensor x = ones(shape, *client.gpu(0)).copy_to(*client.gpu(1));
    const absl::StatusOr<std::vector<float>> values = (x + x).fetch<float>();
    ASSERT_TRUE(values.ok()) << values.status();
    EXPECT_EQ(*values, std::vector<float>(static_cast<size_t>(x.shape().element_count()), 2.0f));
  }
  EXPECT_EQ(*sum(ones({3, 0, 2}, client.cpu())).item<float>(), 0);
}

TEST_F(ClientTest, FromChecksThatTheValuesFillTheShape) {
  const Client client = Connect();
  EXPECT_THAT(Message(from<float>({1, 2, 3}, {2, 2}, client.cpu()).status()),
              HasSubstr("holds 4 values, 3 were given"));
}

TEST_F(ClientTest, SourcesMakeWhatTheySay) {
  const Client client = Connect();
  const Device device = *client.gpu(0);
  EXPECT_THAT(*arange(3, device, 1, 2).fetch<float>(), ElementsAre(1, 3, 5));
  EXPECT_THAT(*eye(2, device).fetch<float>(), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(*full({2}, 7, device, DType::kI32).fetch<int32_t>(), ElementsAre(7, 7));
  EXPECT_EQ(*uniform({5}, device, {.seed = 3}).fetch<float>(),
            *uniform({5}, client.cpu(), {.seed = 3}).fetch<float>());
  EXPECT_EQ(*normal({5}, device, {.seed = 3}).fetch<float>(),
            *normal({5}, client.cpu(), {.seed = 3}).fetch<float>());
  // What the wire reads as "default" is meant literally here.
  EXPECT_THAT(*normal({2}, device, {.mean = 2, .stddev = 0}).fetch<float>(), ElementsAre(2, 2));
  EXPECT_THAT(*uniform({2}, device, {.low = 0, .high = 0}).fetch<float>(), ElementsAre(0, 0));
  EXPECT_THAT(*arange(2, device, 4, 0).fetch<float>(), ElementsAre(4, 4));
}

TEST_F(ClientTest, EveryOpIsTheServersOpOfItsName) {
  const Client client = Connect();
  const Device d = *client.gpu(0);
  const Tensor x = from<float>({1, 4, 9, 16}, {2, 2}, d);
  const Tensor y = from<float>({1, 2, 3, 4}, {2, 2}, d);
  EXPECT_THAT(*(x - y).fetch<float>(), ElementsAre(0, 2, 6, 12));
  EXPECT_THAT(*(x * y).fetch<float>(), ElementsAre(1, 8, 27, 64));
  EXPECT_THAT(*(x / y).fetch<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*(2.0 - y).fetch<float>(), ElementsAre(1, 0, -1, -2));
  EXPECT_THAT(*(y / 2.0).fetch<float>(), ElementsAre(0.5, 1, 1.5, 2));
  EXPECT_THAT(*maximum(y, 5.0 - y).fetch<float>(), ElementsAre(4, 3, 3, 4));
  EXPECT_THAT(*sqrt(x).fetch<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*(-y).fetch<float>(), ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(*relu(y - 2.0).fetch<float>(), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(*matmul(y, y, true, false).fetch<float>(), ElementsAre(10, 14, 14, 20));
  EXPECT_THAT(*dense(y, eye(2, d), from<float>({1, -9}, {2}, d), Activation::kRelu).fetch<float>(),
              ElementsAre(2, 0, 4, 0));
  EXPECT_THAT(*sum(y, {0}).fetch<float>(), ElementsAre(4, 6));
  EXPECT_THAT(*mean(y, {-1}, true).fetch<float>(), ElementsAre(1.5, 3.5));
  EXPECT_THAT(*max(y).fetch<float>(), ElementsAre(4));
  EXPECT_THAT(*argmax(y, {1}).fetch<int64_t>(), ElementsAre(1, 1));
  EXPECT_THAT(*norm(from<float>({3, 4}, {2}, d)).fetch<float>(), ElementsAre(5));
  EXPECT_THAT(*transpose(y).fetch<float>(), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(reshape(y, {-1}).spec().ToString(), "f32[4]");
  EXPECT_THAT(*slice(y, {1, 0}, {2, 2}).fetch<float>(), ElementsAre(3, 4));
  const Tensor rows[] = {y, y};
  EXPECT_EQ(concat(rows, 1).spec().ToString(), "f32[2,4]");
  EXPECT_THAT(*softmax(zeros({2}, d)).fetch<float>(), ElementsAre(0.5, 0.5));
  for (const Tensor& fine : {exp(y), log(y), gelu(y), tanh(y), sigmoid(y)}) {
    EXPECT_TRUE(fine.sync().ok()) << fine.status();
  }
}

TEST_F(ClientTest, AnItemIsOneElement) {
  const Client client = Connect();
  EXPECT_EQ(*ones({}, client.cpu()).item<float>(), 1);
  EXPECT_EQ(ones({2}, client.cpu()).item<float>().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, FetchesCanBeUnderWayTogether) {
  const Client client = Connect();
  std::vector<PendingFetch> pending;
  for (int i = 0; i < 100; ++i) {
    pending.push_back(full({}, i, *client.gpu(i % 2)).fetch_async());
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(*pending[static_cast<size_t>(i)].get<float>(), ElementsAre(i));
  }
  EXPECT_TRUE(pending[0].ready());
}

TEST_F(ClientTest, TheLastCopysEndFreesTheTensorAfterTheCommandsThatUseIt) {
  const Client client = Connect();
  {
    Tensor x = ones({1 << 20}, *client.gpu(0));
    for (int i = 0; i < 20; ++i) {
      x = x + x;  // 4 MiB each; the one before is dropped while its command may still wait.
    }
    EXPECT_EQ(*max(x).item<float>(), 1 << 20);
    const Tensor copy = x;
    x = Tensor();
    EXPECT_EQ(*max(copy).item<float>(), 1 << 20);
  }
  EXPECT_TRUE(client.sync().ok());
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(ClientTest, ManyDropsTogetherFreeEverythingThoughOneWasDeletedByHand) {
  const Client client = Connect();
  std::vector<Tensor> tensors;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back(ones({1000}, *client.gpu(0)));
  }
  const uint64_t by_hand[] = {tensors[50].id()};
  EXPECT_EQ(*client.remove(by_hand), 4000u);
  tensors.clear();
  EXPECT_TRUE(client.sync().ok());
  EXPECT_TRUE(server().UsedBytesBecome(0));
  EXPECT_EQ(client.session()->tensors, 0u);
}

TEST_F(ClientTest, TheEndOfTheClientFreesWhatItsTensorsHeld) {
  {
    const Client client = Connect();
    const Tensor x = ones({1 << 20}, *client.gpu(0));
    EXPECT_TRUE(x.sync().ok());
    EXPECT_GE(server().used_bytes(), uint64_t{4} << 20);
  }
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(ClientTest, ATensorOutlivesTheClientValue) {
  Tensor x;
  {
    const Client client = Connect();
    x = ones({2}, client.cpu());
  }
  EXPECT_THAT(*(x + x).fetch<float>(), ElementsAre(2, 2));
}

TEST_F(ClientTest, SessionsDoNotSeeEachOthersTensors) {
  const Client one = Connect();
  const Client two = Connect();
  const Tensor x = ones({2}, one.cpu());
  EXPECT_EQ(one.get(x.id())->spec().ToString(), "f32[2]");
  EXPECT_EQ(two.get(x.id()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(two.get(x.id()).status()), ErrorReason::kNoSuchTensor);
  EXPECT_FALSE(add(x, ones({2}, two.cpu())).status().ok());
  EXPECT_EQ(one.list_tensors()->size(), 1u);
  EXPECT_EQ(two.list_tensors(/*all_sessions=*/true)->size(), 1u);
  EXPECT_THAT(*two.list_tensors(), IsEmpty());
}

TEST_F(ClientTest, InfoSaysWhatIsThereAfterTheCommandsSoFar) {
  ClientOptions client_options;
  client_options.name = "info test";
  const Client client = Connect(client_options);
  const Tensor x = ones({1 << 18}, *client.gpu(1));
  const absl::StatusOr<DeviceList> list = client.devices();
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->server, "test");
  ASSERT_EQ(list->devices.size(), 3u);
  EXPECT_EQ(list->devices[2].name, "gpu:1");
  EXPECT_EQ(list->devices[2].kind, DeviceKind::kSimulated);
  EXPECT_EQ(list->devices[2].memory_limit_bytes, options.gpu_memory_bytes);
  EXPECT_GE(list->devices[2].memory_used_bytes, uint64_t{1} << 20);
  const absl::StatusOr<SessionInfo> session = client.session();
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->name, "info test");
  EXPECT_EQ(session->tensors, 1u);
  EXPECT_GE(client.sessions()->size(), 1u);
  EXPECT_GT(client.limits().chunk_bytes, 0u);
}

TEST_F(ClientTest, WatchGoesOnUntilItsReaderHasEnough) {
  const Client client = Connect();
  int lists = 0;
  const absl::Status status =
      client.watch_devices(absl::Milliseconds(50), [&lists](const DeviceList& list) {
        EXPECT_EQ(list.devices.size(), 3u);
        return ++lists < 3;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(lists, 3);
}

TEST_F(ClientTest, TensorsOfTheDefaultSessionStayAndHaveSmallIds) {
  ClientOptions client_options;
  client_options.default_session = true;
  uint64_t id = 0;
  {
    const Client terminal = Connect(client_options);
    const Tensor x = ones({2}, *terminal.gpu(0));
    EXPECT_TRUE(x.status().ok()) << x.status();
    id = x.id();
    EXPECT_LT(id, 100u);
  }
  const Client terminal = Connect(client_options);
  const absl::StatusOr<Tensor> again = terminal.get(id);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(*(*again + *again).fetch<float>(), ElementsAre(2, 2));
  const Tensor copy = again->copy_to(*terminal.gpu(1));
  EXPECT_TRUE(copy.receipt().ok()) << copy.receipt().status();
  EXPECT_EQ(matmul(*again, copy).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<float> many(1 << 20, 3.0f);
  EXPECT_EQ(*from(many, {1 << 20}, *terminal.gpu(0)).fetch<float>(), many);
  const Tensor too_large = zeros({1 << 30}, *terminal.gpu(0));
  EXPECT_EQ(ReasonOf(too_large.status()), ErrorReason::kDeviceMemory) << too_large.status();
  const uint64_t ids[] = {id};
  EXPECT_EQ(*terminal.remove(ids), 8u);
  EXPECT_EQ(terminal.remove(ids).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientTest, PrintsWhatAPersonWantsToSee) {
  const Client client = Connect();
  EXPECT_EQ(from<float>({1, 2.5, 3, 4}, {2, 2}, *client.gpu(0)).to_string(),
            "[[1, 2.5],\n [3, 4]] f32[2,2] on gpu:0");
  EXPECT_EQ(ones({}, client.cpu(), DType::kI64).to_string(), "1 i64[] on cpu:0");
  EXPECT_EQ(zeros({0}, client.cpu()).to_string(), "[] f32[0] on cpu:0");
  EXPECT_EQ(arange(20, client.cpu()).to_string(),
            "[0, 1, 2, 3, ..., 16, 17, 18, 19] f32[20] on cpu:0");
  EXPECT_THAT(zeros({100, 100}, client.cpu()).to_string(), HasSubstr("too large to print"));
}

TEST_F(ClientTest, ACommandLargerThanAMessageIsRefusedHere) {
  options.limits.message_bytes = 64 << 10;
  options.limits.inline_bytes = 32 << 10;
  options.limits.chunk_bytes = 32 << 10;
  const Client client = Connect();
  const Tensor row = ones({1}, client.cpu());
  const std::vector<Tensor> rows(20000, row);
  const Tensor all = concat(rows);
  EXPECT_EQ(ReasonOf(all.status()), ErrorReason::kLimit) << all.status();
  EXPECT_EQ(*sum(row).item<float>(), 1);
}

}  // namespace
}  // namespace devserver::client
