// Bulk uploads and downloads: sizes around every limit, progress, deadlines, and networks that
// break on the way. ctest: timeout=120
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "tests/client/client_fixture.h"
#include "tests/fakes/relay.h"

namespace devserver::client {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 20261;  // Printed by what fails: it makes every value.

std::vector<uint8_t> RandomBytes(size_t size) {
  std::mt19937 generator(kSeed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(generator());
  }
  return bytes;
}

TensorSpec BytesSpec(size_t size) {
  return {DType::kU8, *Shape::Create(std::vector<int64_t>{static_cast<int64_t>(size)})};
}

Tensor UploadBytes(const std::vector<uint8_t>& bytes, const Device& device,
                   const TransferOptions& transfer = {}) {
  return upload(BytesSpec(bytes.size()), std::as_bytes(std::span(bytes)), device, transfer);
}

// What a progress callback is told.
struct Told {
  std::vector<uint64_t> done;
  uint64_t total = 0;

  Progress callback() {
    return [this](uint64_t done_bytes, uint64_t total_bytes) {
      done.push_back(done_bytes);
      total = total_bytes;
    };
  }
};

class TransferTest : public ClientTest {
 protected:
  TransferTest() {
    options.limits.inline_bytes = kInline;
    options.limits.chunk_bytes = kChunk;
  }
  static constexpr size_t kInline = size_t{64} << 10;
  static constexpr size_t kChunk = size_t{256} << 10;
};

class TransferSizeTest : public TransferTest, public testing::WithParamInterface<size_t> {
 public:
  static constexpr size_t kInlineBytes = kInline;
  static constexpr size_t kChunkBytes = kChunk;
};

TEST_P(TransferSizeTest, WhatGoesUpComesDownTheSame) {
  const Client client = Connect();
  const std::vector<uint8_t> bytes = RandomBytes(GetParam());
  const Tensor tensor = UploadBytes(bytes, *client.gpu(0));
  const absl::StatusOr<std::vector<uint8_t>> back = tensor.fetch<uint8_t>();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, bytes) << "seed " << kSeed;
  EXPECT_EQ(*sum(cast(tensor, DType::kI64)).item<int64_t>(),
            std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
}

TEST_P(TransferSizeTest, ProgressGoesFromNothingToAllAndNeverBack) {
  const Client client = Connect();
  const std::vector<uint8_t> bytes = RandomBytes(GetParam());
  Told up;
  TransferOptions transfer;
  transfer.progress = up.callback();
  const Tensor tensor = UploadBytes(bytes, client.cpu(), transfer);
  Told down;
  transfer.progress = down.callback();
  std::vector<std::byte> target(bytes.size());
  ASSERT_TRUE(tensor.fetch_into(target, transfer).ok()) << tensor.status();
  for (const Told& told : {up, down}) {
    ASSERT_FALSE(told.done.empty());
    EXPECT_EQ(told.done.front(), 0u);
    EXPECT_EQ(told.done.back(), bytes.size());
    EXPECT_EQ(told.total, bytes.size());
    EXPECT_TRUE(std::is_sorted(told.done.begin(), told.done.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, TransferSizeTest,
    testing::Values(size_t{0}, size_t{1},
                    TransferSizeTest::kInlineBytes,        // the last that travels with its command
                    TransferSizeTest::kInlineBytes + 1,    // the first that has a stream of its own
                    TransferSizeTest::kChunkBytes,         // exactly one chunk
                    TransferSizeTest::kChunkBytes + 1,     // a second, short chunk
                    33 * TransferSizeTest::kChunkBytes));  // more than a window of gRPC's

TEST_F(TransferTest, AnUploadLargerThanTheDeviceIsRefusedWithItsLimit) {
  options.gpu_memory_bytes = uint64_t{1} << 20;
  const Client client = Connect();
  const Tensor tensor = UploadBytes(RandomBytes(size_t{2} << 20), *client.gpu(0));
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted) << tensor.status();
  EXPECT_EQ(ReasonOf(tensor.status()), ErrorReason::kDeviceMemory);
  EXPECT_EQ(DetailsOf(tensor.status())->limit, uint64_t{1} << 20);
}

TEST_F(TransferTest, BytesThatDoNotFillTheShapeAreRefusedHere) {
  const Client client = Connect();
  const std::vector<uint8_t> bytes = RandomBytes(5);
  const Tensor tensor = upload(BytesSpec(6), std::as_bytes(std::span(bytes)), client.cpu());
  EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("has 6 bytes, 5 were given"));
  std::vector<std::byte> target(3);
  EXPECT_EQ(ones({2}, client.cpu()).fetch_into(target).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TransferTest, ADownloadOfAFailedTensorTellsTheRootCause) {
  options.gpu_memory_bytes = uint64_t{1} << 20;
  const Client client = Connect();
  const Tensor too_large = zeros({1 << 20}, *client.gpu(0));
  const absl::Status status = too_large.fetch<float>().status();
  EXPECT_EQ(ReasonOf(status), ErrorReason::kDeviceMemory) << status;
}

TEST_F(TransferTest, AnUploadThatIsCutStartsOverAndADownloadGoesOn) {
  Relay relay(server().address());
  const Client client = ConnectTo(relay.address());
  const std::vector<uint8_t> bytes = RandomBytes(12 * kChunk + 7);
  relay.CutAfterClientBytes(static_cast<int64_t>(5 * kChunk));
  const Tensor tensor = UploadBytes(bytes, *client.gpu(1));
  ASSERT_TRUE(tensor.status().ok()) << tensor.status();
  // Once only: a cut for every chunk would leave no way to finish.
  bool cut = false;
  TransferOptions transfer;
  transfer.progress = [&](uint64_t done_bytes, uint64_t) {
    if (done_bytes > 3 * kChunk && !std::exchange(cut, true)) {
      relay.CutConnections();
    }
  };
  std::vector<std::byte> back(bytes.size());
  const absl::Status status = tensor.fetch_into(back, transfer);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::ranges::equal(back, std::as_bytes(std::span(bytes)))) << "seed " << kSeed;
  EXPECT_EQ(client.session()->tensors, 1u);
}

// The caller may free its memory when upload returns, also when the network holds bytes of it: ASan
// looks on.
TEST_F(TransferTest, AStalledUploadEndsAtItsDeadlineAndLetsGoOfTheMemory) {
  Relay relay(server().address());
  const Client client = ConnectTo(relay.address());
  ASSERT_TRUE(client.sync().ok());
  relay.Stall(true);
  TransferOptions transfer;
  transfer.timeout = absl::Milliseconds(300);
  {
    const std::vector<uint8_t> bytes = RandomBytes(size_t{40} << 20);
    const Tensor tensor = UploadBytes(bytes, client.cpu(), transfer);
    EXPECT_EQ(tensor.status().code(), absl::StatusCode::kDeadlineExceeded) << tensor.status();
  }
  relay.Stall(false);
  EXPECT_EQ(*sum(ones({4}, client.cpu())).item<float>(), 4);
  EXPECT_TRUE(server().UsedBytesBecome(0)) << server().used_bytes();
}

TEST_F(TransferTest, ATransferToAServerThatIsGoneIsUnavailable) {
  ClientOptions client_options;
  client_options.reconnect_timeout = absl::Seconds(1);
  const Client client = Connect(client_options);
  const Tensor tensor = UploadBytes(RandomBytes(4 * kChunk), client.cpu());
  ASSERT_TRUE(tensor.status().ok());
  StopServer();
  EXPECT_EQ(UploadBytes(RandomBytes(4 * kChunk), client.cpu()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(tensor.fetch<uint8_t>().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TransferTest, CommandsPassABulkTransfer) {
  const Client client = Connect();
  const std::vector<uint8_t> bytes = RandomBytes(size_t{48} << 20);
  int sums = 0;
  TransferOptions transfer;
  transfer.progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    if (done_bytes > total_bytes / 2 && sums == 0) {
      sums += *sum(ones({4}, *client.gpu(0))).item<float>() == 4 ? 1 : 0;
    }
  };
  EXPECT_TRUE(UploadBytes(bytes, client.cpu(), transfer).status().ok());
  EXPECT_EQ(sums, 1);
}

}  // namespace
}  // namespace devserver::client
