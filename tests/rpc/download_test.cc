// Downloads: the bytes of a tensor or a range of them, for as long as the reader reads.
#include <gmock/gmock.h>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

struct Downloaded {
  grpc::Status status;
  std::vector<v1::Tensor> headers;
  std::vector<v1::Receipt> receipts;
  std::vector<size_t> chunk_bytes;
  std::string bytes;
};

class DownloadTest : public ServerTest {
 protected:
  void Start() { client = std::make_unique<WireClient>(server().channel()); }
  void SetUp() override { Start(); }

  Downloaded Download(const std::string& text) {
    grpc::ClientContext context;
    client->Prepare(context);
    Downloaded downloaded;
    const auto reader = client->tensors->Download(&context, Parse<v1::DownloadRequest>(text));
    for (v1::DownloadReply reply; reader->Read(&reply);) {
      if (reply.has_header()) {
        downloaded.headers.push_back(reply.header());
      } else if (reply.has_receipt()) {
        downloaded.receipts.push_back(reply.receipt());
      } else {
        downloaded.chunk_bytes.push_back(reply.chunk().size());
        downloaded.bytes += reply.chunk();
      }
    }
    downloaded.status = reader->Finish();
    return downloaded;
  }

  std::unique_ptr<WireClient> client;
};

TEST_F(DownloadTest, ComesAsHeaderChunksAndReceipt) {
  const uint64_t chunk_bytes = Limits().chunk_bytes;
  // Two full chunks and a third of one element.
  const int64_t elements = static_cast<int64_t>(chunk_bytes / 4 * 2 + 1);
  ASSERT_TRUE(
      client->Create(absl::StrFormat("shape: %d device: 'gpu:1' arange {}", elements)).ok());
  const Downloaded whole = Download("id: 1");
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.headers.size(), 1u);
  EXPECT_EQ(whole.headers[0].id(), 1u);
  EXPECT_EQ(whole.headers[0].device(), "gpu:1");
  EXPECT_THAT(whole.chunk_bytes, testing::ElementsAre(chunk_bytes, chunk_bytes, 4));
  std::vector<float> numbers(static_cast<size_t>(elements));
  ASSERT_EQ(whole.bytes.size(), 4 * numbers.size());
  std::memcpy(numbers.data(), whole.bytes.data(), whole.bytes.size());
  for (size_t i = 0; i < numbers.size(); i += 1000) {
    ASSERT_EQ(numbers[i], static_cast<float>(i));
  }
  ASSERT_EQ(whole.receipts.size(), 1u);
  EXPECT_EQ(whole.receipts[0].size_bytes(), whole.bytes.size());
  EXPECT_EQ(whole.receipts[0].legs(0).source(), "gpu:1");
  EXPECT_EQ(whole.receipts[0].legs(0).target(), "cpu:0");
  EXPECT_EQ(whole.receipts[0].measured().basis(), v1::Seconds::CLOCK);
  EXPECT_EQ(whole.receipts[0].simulated().basis(), v1::Seconds::MODEL);
}

TEST_F(DownloadTest, RangesAreByByte) {
  ASSERT_TRUE(client->Create("shape: 6 dtype: U8 values { raw: 'abcdef' }").ok());
  EXPECT_EQ(Download("id: 1").bytes, "abcdef");
  EXPECT_EQ(Download("id: 1 offset_bytes: 2").bytes, "cdef");
  EXPECT_EQ(Download("id: 1 offset_bytes: 2 size_bytes: 3").bytes, "cde");
  EXPECT_EQ(Download("id: 1 size_bytes: 1").bytes, "a");
  const Downloaded nothing = Download("id: 1 offset_bytes: 6");
  EXPECT_TRUE(nothing.status.ok()) << nothing.status.error_message();
  EXPECT_EQ(nothing.bytes, "");
  EXPECT_EQ(nothing.receipts.size(), 1u);
  EXPECT_EQ(Download("id: 1 offset_bytes: 7").status.error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(DownloadTest, AFailedTensorTellsWhy) {
  const auto run = client->Run("commands { create { id: 1 device: 'gpu:9' } }");
  ASSERT_TRUE(run.ok());
  const Downloaded failed = Download("id: 1");
  EXPECT_EQ(failed.status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsFrom(failed.status).reason(), v1::OpError::INPUT_FAILED);
  EXPECT_EQ(DetailsFrom(failed.status).origin_tensor(), 1u);
}

TEST_F(DownloadTest, ATensorDeletedMeanwhileIsReadToTheEnd) {
  ASSERT_TRUE(client->Create("shape: 10000000 device: 'gpu:0' fill: 1").ok());  // 40 MB
  grpc::ClientContext context;
  client->Prepare(context);
  const auto reader = client->tensors->Download(&context, Parse<v1::DownloadRequest>("id: 1"));
  v1::DownloadReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(reply.has_header());
  ASSERT_TRUE(client->Delete({1}).ok());
  EXPECT_EQ(server().used_bytes(), 40'000'000u);  // Held by the download.
  size_t size = 0;
  while (reader->Read(&reply)) {
    size += reply.chunk().size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(size, 40'000'000u);
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(DownloadTest, AReaderThatStallsIsEndedAndHoldsNothing) {
  StopServer();
  options.limits.stall_seconds = 0.3;
  Start();
  ASSERT_TRUE(client->Create("shape: 25000000 device: 'gpu:0' fill: 1").ok());  // 100 MB
  RawStream stream(*client, "/devserver.v1.TensorService/Download");
  ASSERT_TRUE(stream.Write(Parse<v1::DownloadRequest>("id: 1").SerializeAsString()));
  ASSERT_TRUE(stream.WritesDone());
  std::string message;
  ASSERT_TRUE(stream.Read(&message));
  // Nothing is read from here on; the tensor lives only as long as the download.
  ASSERT_TRUE(client->Delete({1}).ok());
  EXPECT_EQ(server().used_bytes(), 100'000'000u);
  EXPECT_TRUE(server().UsedBytesBecome(0));
  EXPECT_EQ(stream.Finish().error_code(), grpc::CANCELLED);
}

TEST_F(DownloadTest, ASlowReaderIsNotStalled) {
  StopServer();
  options.limits.stall_seconds = 0.5;
  Start();
  ASSERT_TRUE(client->Create("shape: 10000000 device: 'gpu:0' fill: 1").ok());
  grpc::ClientContext context;
  client->Prepare(context);
  const auto reader = client->tensors->Download(&context, Parse<v1::DownloadRequest>("id: 1"));
  size_t size = 0;
  auto next = std::chrono::steady_clock::now();
  for (v1::DownloadReply reply; reader->Read(&reply);) {
    size += reply.chunk().size();
    next += std::chrono::milliseconds(50);  // 20 chunks: a second in all
    ASSERT_TRUE(Eventually([&] { return std::chrono::steady_clock::now() >= next; }));
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(size, 40'000'000u);
}

TEST_F(DownloadTest, DeviceMemoryThatTheHostCanNotReadIsStaged) {
  StopServer();
  options.faults = &faults;
  options.memory = FaultyDevice::Memory::kForeign;
  Start();
  ASSERT_TRUE(client->Create("shape: 1000000 device: 'gpu:0' arange {}").ok());
  const Downloaded whole = Download("id: 1");
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.bytes.size(), 4'000'000u);
  float last = 0;
  std::memcpy(&last, whole.bytes.data() + 3'999'996, 4);
  EXPECT_EQ(last, 999'999.0f);
  faults.Fail(2, FaultPlan::Kind::kTransient);  // The second chunk's copy.
  EXPECT_EQ(Download("id: 1").status.error_code(), grpc::UNAVAILABLE);
  faults.Stop();
  EXPECT_TRUE(Download("id: 1").status.ok());
  ASSERT_TRUE(client->Delete({1}).ok());
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

}  // namespace
}  // namespace devserver
