// Uploads to and downloads from gpu:0 through the client library, from 1 KiB to 256 MiB, against
// memcpy between warm buffers; 256 MiB also against a bare stream of ByteBuffers (bare_server.h)
// with the same chunks and channel arguments, whose far end copies into or out of warm memory too.

// ctest: args=--benchmark_filter=^(upload|download)/
#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/bulk_call.h"
#include "devserver/client.h"
#include "server/base/status_macros.h"
#include "server/session/limits.h"
#include "tests/bench/bare_server.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/local_math.h"
#include "tests/bench/servers.h"

namespace devserver::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(120);

// The client's buffers, which all transfers share: warm after the first.
struct Buffers {
  using Bytes = std::vector<std::byte, DeviceLikeAllocator<std::byte>>;
  Buffers() : source(kBareBytesMax), target(kBareBytesMax), copy(kBareBytesMax) {
    for (size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::byte>(i * 2654435761u >> 24);
    }
  }
  Bytes source;
  Bytes target;
  Bytes copy;
};

Buffers& SharedBuffers() {
  static Buffers buffers;
  return buffers;
}

enum class Direction { kUpload, kDownload };

class Transfer {
 public:
  static absl::StatusOr<std::shared_ptr<Transfer>> Make(Direction direction, size_t size) {
    ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
    ASSIGN_OR_RETURN(client::Client connected, client::Client::connect(address));
    ASSIGN_OR_RETURN(client::Device device, connected.device("gpu:0"));
    std::shared_ptr<Transfer> transfer(new Transfer(size, std::move(connected), std::move(device)));
    if (direction == Direction::kDownload) {
      RETURN_IF_ERROR(transfer->Upload(1));
    }
    return transfer;
  }

  absl::Status Upload(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      // Its memory is for the next one, which would otherwise overtake the deletion.
      tensor_ = client::Tensor();
      RETURN_IF_ERROR(client_.sync());
      tensor_ = client::upload(spec_, source_, device_);
      RETURN_IF_ERROR(tensor_.sync());
    }
    return absl::OkStatus();
  }
  absl::Status Download(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(tensor_.fetch_into(target_));
    }
    return absl::OkStatus();
  }
  absl::Status CopyHere(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(copy_.data(), source_.data(), source_.size());
      asm volatile("" : : "r"(copy_.data()) : "memory");  // As if somebody read it.
    }
    return absl::OkStatus();
  }

  absl::Status Check() {
    std::ranges::fill(target_, std::byte{0});
    RETURN_IF_ERROR(tensor_.fetch_into(target_));
    return std::ranges::equal(target_, source_) ? absl::OkStatus()
                                                : absl::DataLossError("other bytes came back");
  }

  // The bare stream's side.
  std::span<const std::byte> source() const { return source_; }
  std::span<std::byte> target() const { return target_; }

 private:
  Transfer(size_t size, client::Client connected, client::Device device)
      : spec_{DType::kU8, Shape::Of({static_cast<int64_t>(size)})},
        source_(std::span(SharedBuffers().source).first(size)),
        target_(std::span(SharedBuffers().target).first(size)),
        copy_(std::span(SharedBuffers().copy).first(size)),
        client_(std::move(connected)),
        device_(std::move(device)) {}

  const TensorSpec spec_;
  const std::span<const std::byte> source_;
  const std::span<std::byte> target_;
  const std::span<std::byte> copy_;
  const client::Client client_;
  const client::Device device_;
  client::Tensor tensor_;
};

// ---- The bare stream: what the client library does, without devserverd's checks on either end.

class BareStream {
 public:
  static absl::StatusOr<std::shared_ptr<BareStream>> Make() {
    ASSIGN_OR_RETURN(const std::string address, ControlAddress());
    return std::make_shared<BareStream>(client::OpenTransport(address, client::Traffic::kBulk));
  }
  explicit BareStream(std::shared_ptr<const client::Transport> transport)
      : transport_(std::move(transport)) {}

  absl::Status Upload(std::span<const std::byte> bytes) const {
    client::BulkCall call(transport_, "/devserver.v1.TensorService/Upload", "", kTimeout);
    const size_t chunk_bytes = Limits().chunk_bytes;
    for (size_t offset = 0; offset < bytes.size(); offset += chunk_bytes) {
      const size_t size = std::min(chunk_bytes, bytes.size() - offset);
      uint8_t head[1 + 10];
      head[0] = v1::UploadRequest::kChunkFieldNumber << 3 | 2;
      const uint8_t* const head_end =
          google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size, head + 1);
      const grpc::Slice slices[] = {grpc::Slice(head, static_cast<size_t>(head_end - head)),
                                    grpc::Slice(const_cast<std::byte*>(bytes.data()) + offset, size,
                                                grpc::Slice::STATIC_SLICE)};
      if (!call.Write(grpc::ByteBuffer(slices, 2))) {
        break;
      }
    }
    grpc::ByteBuffer reply;
    if (call.WritesDone()) {
      call.Read(&reply);
    }
    RETURN_IF_ERROR(FromGrpc(call.Finish()));
    return reply.Length() > 0 ? absl::OkStatus() : absl::InternalError("no reply");
  }

  absl::Status Download(std::span<std::byte> target) const {
    client::BulkCall call(transport_, "/devserver.v1.TensorService/Download", "", kTimeout);
    v1::DownloadRequest request;
    request.set_id(1);
    request.set_size_bytes(target.size());
    const grpc::Slice encoded(request.SerializeAsString());
    size_t received = 0;
    if (call.Write(grpc::ByteBuffer(&encoded, 1)) && call.WritesDone()) {
      grpc::ByteBuffer message;
      while (call.Read(&message)) {
        received += TakeChunk(message, target.subspan(received));
      }
    }
    RETURN_IF_ERROR(FromGrpc(call.Finish()));
    return received == target.size() ? absl::OkStatus() : absl::DataLossError("bytes are missing");
  }

 private:
  // The tag and a length of four bytes (chunks of 2 MiB), then the bytes.
  static size_t TakeChunk(const grpc::ByteBuffer& message, std::span<std::byte> target) {
    constexpr size_t kHeadBytes = 5;
    std::vector<grpc::Slice> slices;
    message.Dump(&slices).ok();
    size_t skip = kHeadBytes;
    size_t taken = 0;
    for (const grpc::Slice& slice : slices) {
      const size_t skipped = std::min(skip, slice.size());
      const size_t size = std::min(slice.size() - skipped, target.size() - taken);
      std::memcpy(target.data() + taken, slice.begin() + skipped, size);
      skip -= skipped;
      taken += size;
    }
    return taken;
  }

  const std::shared_ptr<const client::Transport> transport_;
};

absl::StatusOr<Sides> MakeTransfer(Direction direction, size_t size, bool bare) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Transfer> transfer, Transfer::Make(direction, size));
  Sides sides;
  const bool upload = direction == Direction::kUpload;
  sides.subject.run = [=](int64_t n) {
    return upload ? transfer->Upload(n) : transfer->Download(n);
  };
  sides.control.run = [=](int64_t n) { return transfer->CopyHere(n); };
  sides.check = [=] { return transfer->Check(); };
  if (bare) {
    ASSIGN_OR_RETURN(const std::shared_ptr<BareStream> stream, BareStream::Make());
    sides.control.run = [=](int64_t n) -> absl::Status {
      for (int64_t i = 0; i < n; ++i) {
        RETURN_IF_ERROR(upload ? stream->Upload(transfer->source())
                               : stream->Download(transfer->target()));
      }
      return absl::OkStatus();
    };
  }
  return sides;
}

void RegisterTransfer(Direction direction, const std::string& name, size_t size, bool bare) {
  Comparison comparison;
  comparison.name =
      absl::StrFormat("%s/%s", direction == Direction::kUpload ? "upload" : "download", name);
  comparison.unit = Unit::kBytes;
  comparison.per_operation = static_cast<double>(size);
  comparison.compare = Compare::kSpeed;
  comparison.ratio_goal = bare ? 0.85 : 0;
  comparison.slow = size > 32 << 20 && !bare;
  Register(comparison, [=] { return MakeTransfer(direction, size, bare); });
}

bool RegisterAll() {
  constexpr size_t kKiB = 1024;
  constexpr size_t kMiB = 1024 * kKiB;
  for (const Direction direction : {Direction::kUpload, Direction::kDownload}) {
    RegisterTransfer(direction, "1KiB_vs_memcpy", kKiB, false);
    RegisterTransfer(direction, "32KiB_vs_memcpy", 32 * kKiB, false);
    RegisterTransfer(direction, "1MiB_vs_memcpy", kMiB, false);
    RegisterTransfer(direction, "8MiB_vs_memcpy", 8 * kMiB, false);
    RegisterTransfer(direction, "64MiB_vs_memcpy", 64 * kMiB, false);
    RegisterTransfer(direction, "256MiB_vs_memcpy", 256 * kMiB, false);
    RegisterTransfer(direction, "256MiB_vs_bare_stream", kBareBytesMax, true);
  }
  return true;
}

const bool kRegistered = RegisterAll();

}  // namespace
}  // namespace devserver::bench
