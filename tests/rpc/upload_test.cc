// Uploads: what arrives whole becomes a tensor; what is short, long, cut, wrong or stalled leaves
// nothing.
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::HasSubstr;

constexpr char kUpload[] = "/devserver.v1.TensorService/Upload";

std::string Header(const std::string& text) {
  v1::UploadRequest request;
  *request.mutable_header() = Parse<v1::UploadHeader>(text);
  return request.SerializeAsString();
}
std::string Chunk(const std::string& bytes) {
  v1::UploadRequest request;
  request.set_chunk(bytes);
  return request.SerializeAsString();
}
// Bytes that differ from place to place.
std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  std::iota(bytes.begin(), bytes.end(), '\1');
  return bytes;
}

class UploadTest : public ServerTest {
 protected:
  void SetUp() override { client = std::make_unique<WireClient>(server().channel()); }

  Outcome<v1::TensorReply> Upload(const std::vector<std::string>& messages) {
    RawStream stream(*client, kUpload);
    for (const std::string& message : messages) {
      if (!stream.Write(message)) {
        break;
      }
    }
    stream.WritesDone();
    Outcome<v1::TensorReply> outcome;
    std::string reply;
    if (stream.Read(&reply)) {
      EXPECT_TRUE(outcome.reply.ParseFromString(reply));
    }
    outcome.status = stream.Finish();
    return outcome;
  }
  void ExpectRefused(const std::vector<std::string>& messages, const std::string& says,
                     grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    const Outcome<v1::TensorReply> refused = Upload(messages);
    EXPECT_EQ(refused.code(), code) << refused.message();
    EXPECT_THAT(refused.error().message(), HasSubstr(says));
    EXPECT_TRUE(server().UsedBytesBecome(0));
    EXPECT_EQ(client->List("").reply.tensors_size(), 0);
  }

  std::unique_ptr<WireClient> client;
};

TEST_F(UploadTest, ChunksOfAnySizeBecomeATensor) {
  const std::string bytes = Bytes(24);
  const auto uploaded = Upload(
      {Header("shape: [2, 3] device: 'gpu:1' id: 4294967296 label: 'weights'"),
       Chunk(bytes.substr(0, 1)), Chunk(""), Chunk(bytes.substr(1, 16)), Chunk(bytes.substr(17))});
  ASSERT_TRUE(uploaded.ok()) << uploaded.message();
  EXPECT_EQ(uploaded.reply.tensor().id(), 4294967296u);
  EXPECT_EQ(uploaded.reply.tensor().label(), "weights");
  EXPECT_EQ(uploaded.reply.tensor().device(), "gpu:1");
  EXPECT_EQ(uploaded.reply.tensor().state(), v1::Tensor::READY);
  EXPECT_EQ(client->Fetch(4294967296, true).reply.values().raw(), bytes);
  EXPECT_EQ(client->Get(4294967296).reply.label(), "weights");
}

TEST_F(UploadTest, TheReceiptNamesTheRouteAndTheTimes) {
  const auto uploaded = Upload({Header("shape: [2, 3] device: 'gpu:1'"), Chunk(Bytes(24))});
  const v1::Receipt& receipt = uploaded.reply.receipt();
  EXPECT_EQ(receipt.size_bytes(), 24u);
  ASSERT_EQ(receipt.legs_size(), 1);
  EXPECT_EQ(receipt.legs(0).source(), "cpu:0");
  EXPECT_EQ(receipt.legs(0).target(), "gpu:1");
  EXPECT_EQ(receipt.legs(0).medium(), v1::Leg::PCIE);
  EXPECT_EQ(receipt.measured().basis(), v1::Seconds::CLOCK);
  EXPECT_EQ(receipt.simulated().basis(), v1::Seconds::MODEL);
}

TEST_F(UploadTest, AnEmptyTensorNeedsNoChunk) {
  const auto uploaded = Upload({Header("shape: [3, 0, 2] dtype: I64 device: 'gpu:0'")});
  ASSERT_TRUE(uploaded.ok()) << uploaded.message();
  EXPECT_EQ(uploaded.reply.tensor().size_bytes(), 0u);
}

TEST_F(UploadTest, HeaderAndChunkMayShareAMessage) {
  const auto uploaded = Upload({Header("shape: [4] dtype: U8") + Chunk("abcd")});
  ASSERT_TRUE(uploaded.ok()) << uploaded.message();
  EXPECT_EQ(client->Fetch(1, true).reply.values().raw(), "abcd");
}

TEST_F(UploadTest, MemoryIsTakenBeforeTheFirstByte) {
  RawStream stream(*client, kUpload);
  ASSERT_TRUE(stream.Write(Header("shape: [1048576] device: 'gpu:0'")));
  EXPECT_TRUE(server().UsedBytesBecome(4 << 20));
  EXPECT_EQ(client->List("").reply.tensors_size(), 0);
  stream.Cancel();
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(UploadTest, WrongSequencesAreRefused) {
  const std::string header = Header("shape: [2, 3]");
  ExpectRefused({}, "no header");
  ExpectRefused({Chunk(Bytes(24))}, "a chunk before the header");
  ExpectRefused({Chunk(Bytes(24)), header}, "a chunk before the header");
  ExpectRefused({header}, "24 bytes, 0 came");
  ExpectRefused({header, Chunk(Bytes(23))}, "ended early: f32[2,3] is 24 bytes, 23 came");
  ExpectRefused({header, Chunk(Bytes(25))}, "24 bytes, 25 came");
  ExpectRefused({header, Chunk(Bytes(24)), Chunk("x")}, "24 bytes, 25 came");
  ExpectRefused({header, header}, "second header");
  ExpectRefused({header, Chunk(Bytes(8)), header}, "second header");
  ExpectRefused({header, Chunk(Bytes(24)), header}, "second header");
}

TEST_F(UploadTest, AMessageOverTheLimitIsToldTheSizeOfAChunk) {
  const size_t size = Limits().message_bytes;
  ExpectRefused({Header("shape: [8388608] dtype: U8"), Chunk(std::string(size, 'x'))},
                "send chunks of at most 2097152", grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(UploadTest, BytesThatAreNoMessageAreRefused) {
  const std::string header = Header("shape: [2, 3]");
  ExpectRefused({"\xff"}, "not an UploadRequest");
  ExpectRefused({std::string("\0", 1)}, "not an UploadRequest");
  ExpectRefused({header, "\x12"}, "not an UploadRequest");  // a chunk without length
  ExpectRefused({header,
                 "\x12\x05"
                 "abc"},
                "not an UploadRequest");  // 5 bytes, 3 there
  ExpectRefused({header,
                 "\x12\xff\xff\xff\xff\x07"
                 "abc"},
                "");  // 2 GiB, 3 there
  ExpectRefused({header, std::string("\x12\x80\x80\x80\x80\x80\x80\x80\x80\x10") + "abc"},
                "");  // 2^60
  ExpectRefused({header,
                 "\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
                 "abc"},
                "");
  ExpectRefused({"\x0a\x05\x08\x02"}, "not an UploadRequest");  // a header that is cut
  ExpectRefused({header, "\x0b"}, "not an UploadRequest");      // a group that does not end
}

TEST_F(UploadTest, DeclaredSizesAreCheckedBeforeMemoryIsTaken) {
  const auto huge =
      Upload({Header("shape: 144115188075855871 dtype: F64 device: 'gpu:0'")});  // 2^60 - 8
  EXPECT_EQ(huge.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(huge.error().reason(), v1::OpError::DEVICE_MEMORY);
  EXPECT_EQ(huge.error().amount().asked(), (uint64_t{1} << 60) - 8);
  ExpectRefused({Header("shape: [2147483648, 2147483648, 2147483648, 2147483648, 2147483648]")},
                "elements");
  ExpectRefused({Header("shape: [-1]")}, "negative");
  ExpectRefused({Header("shape: [1, 1, 1, 1, 1, 1, 1, 1, 1]")}, "9 dimensions");
  EXPECT_EQ(Upload({Header("device: 'gpu:5'")}).error().reason(), v1::OpError::NO_SUCH_DEVICE);
  EXPECT_EQ(server().peak_bytes(0) + server().peak_bytes(1) + server().peak_bytes(2), 0u);
}

TEST_F(UploadTest, OneThatDoesNotFitNowIsRefusedAtTheHeader) {
  ASSERT_TRUE(client->Create("id: 1 shape: [50000000] device: 'gpu:0'").ok());  // 200 of 256 MiB
  const auto refused = Upload({Header("shape: [50000000] device: 'gpu:0'"), Chunk("x")});
  EXPECT_EQ(refused.error().reason(), v1::OpError::DEVICE_MEMORY);
  EXPECT_EQ(refused.error().amount().used(), 200000000u);
  EXPECT_TRUE(server().UsedBytesBecome(200000000));
}

TEST_F(UploadTest, OneThatIsCutAtAnyByteLeavesNothing) {
  const std::vector<std::string> messages = {Header("shape: [5] dtype: U8 label: 'cut me'"),
                                             Chunk("ab"), Chunk("cde")};
  for (size_t whole = 0; whole < messages.size(); ++whole) {
    // Also with no byte of the message, which is a cut at the border.
    for (size_t bytes = 0; bytes < messages[whole].size(); ++bytes) {
      SCOPED_TRACE(absl::StrFormat("message %d, byte %d", whole, bytes));
      std::vector<std::string> cut(messages.begin(),
                                   messages.begin() + static_cast<ptrdiff_t>(whole));
      cut.push_back(messages[whole].substr(0, bytes));
      ExpectRefused(cut, "");
    }
  }
  EXPECT_TRUE(Upload(messages).ok());
}

TEST_F(UploadTest, AClientThatVanishesAtAChunkBorderLeavesNothing) {
  const std::string chunk = Bytes(64 << 10);
  for (int sent = 0; sent <= 8; ++sent) {
    SCOPED_TRACE(sent);
    {
      RawStream stream(*client, kUpload);
      ASSERT_TRUE(stream.Write(Header("id: 9 shape: [131072] device: 'gpu:1'")));  // 8 chunks
      for (int i = 0; i < sent; ++i) {
        ASSERT_TRUE(stream.Write(Chunk(chunk)));
      }
      EXPECT_TRUE(server().UsedBytesBecome(512 << 10));
      stream.Cancel();
    }
    EXPECT_TRUE(server().UsedBytesBecome(0));
    EXPECT_EQ(client->Get(9).code(), grpc::NOT_FOUND);
  }
}

TEST_F(UploadTest, ADeadlineThatPassesLeavesNothing) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  v1::TensorReply reply;
  const auto writer = client->tensors->Upload(&context, &reply);
  v1::UploadRequest header;
  *header.mutable_header() = Parse<v1::UploadHeader>("shape: [1000]");
  ASSERT_TRUE(writer->Write(header));
  EXPECT_EQ(writer->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(UploadTest, ABoolIsZeroOrOne) {
  const std::string header = Header("shape: [4] dtype: BOOL");
  EXPECT_TRUE(
      Upload({Header("id: 1 shape: [4] dtype: BOOL"), Chunk(std::string("\0\1\1\0", 4))}).ok());
  EXPECT_TRUE(client->Delete({1}).ok());
  EXPECT_TRUE(server().UsedBytesBecome(0));
  ExpectRefused({header, Chunk(std::string("\0\1", 2)), Chunk(std::string("\2\0", 2))}, "bool");
}

TEST_F(UploadTest, TheSameIdWithTheSameBytesIsAReplay) {
  const std::vector<std::string> messages = {Header("id: 7 shape: [2, 3] device: 'gpu:0'"),
                                             Chunk(Bytes(24))};
  ASSERT_TRUE(Upload(messages).ok());
  const auto replay =
      Upload({messages[0], Chunk(Bytes(24).substr(0, 9)), Chunk(Bytes(24).substr(9))});
  ASSERT_TRUE(replay.ok()) << replay.message();
  EXPECT_EQ(replay.reply.tensor().id(), 7u);
  EXPECT_TRUE(server().UsedBytesBecome(24));
  for (const std::vector<std::string>& other :
       {std::vector<std::string>{messages[0], Chunk(std::string(24, 'x'))},
        std::vector<std::string>{Header("id: 7 shape: [3, 2] device: 'gpu:0'"), Chunk(Bytes(24))},
        std::vector<std::string>{Header("id: 7 shape: [2, 3] device: 'gpu:1'"),
                                 Chunk(Bytes(24))}}) {
    const auto refused = Upload(other);
    EXPECT_EQ(refused.code(), grpc::ALREADY_EXISTS) << refused.message();
    EXPECT_EQ(refused.error().reason(), v1::OpError::DUPLICATE_ID);
  }
  const auto shorter = Upload({messages[0], Chunk(Bytes(23))});
  EXPECT_EQ(shorter.code(), grpc::INVALID_ARGUMENT) << shorter.message();
  EXPECT_EQ(client->Fetch(7, true).reply.values().raw(), Bytes(24));
}

TEST_F(UploadTest, OneThatStallsIsEnded) {
  StopServer();
  options.limits.stall_seconds = 0.3;
  client = std::make_unique<WireClient>(server().channel());
  RawStream stream(*client, kUpload);
  ASSERT_TRUE(stream.Write(Header("shape: [1048576] device: 'gpu:0'")));
  ASSERT_TRUE(server().UsedBytesBecome(4 << 20));
  EXPECT_EQ(stream.Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(UploadTest, DeviceMemoryThatTheHostCanNotReadWorksToo) {
  StopServer();
  options.faults = &faults;
  options.memory = FaultyDevice::Memory::kForeign;
  client = std::make_unique<WireClient>(server().channel());
  const std::vector<std::string> messages = {Header("id: 7 shape: [2, 3] device: 'gpu:0'"),
                                             Chunk(Bytes(24))};
  ASSERT_TRUE(Upload(messages).ok());
  EXPECT_TRUE(Upload(messages).ok());
  EXPECT_EQ(Upload({messages[0], Chunk(std::string(24, 'x'))}).code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(client->Fetch(7, true).reply.values().raw(), Bytes(24));
  EXPECT_TRUE(client->Copy("source: 7 device: 'cpu:0' id: 8").ok());
  EXPECT_EQ(client->Fetch(8, true).reply.values().raw(), Bytes(24));
  // A device that fails in the middle ends the upload, and only that.
  faults.Fail(2, FaultPlan::Kind::kTransient);  // Call 1 allocates.
  const auto failed = Upload({Header("shape: [2, 3] device: 'gpu:0'"), Chunk(Bytes(24))});
  EXPECT_EQ(failed.code(), grpc::UNAVAILABLE) << failed.message();
  EXPECT_TRUE(server().UsedBytesBecome(48));
}

}  // namespace
}  // namespace devserver
