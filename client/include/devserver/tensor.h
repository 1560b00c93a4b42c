// Device and Tensor: cheap values that stand for something on the server.
//
// A Tensor never changes. Calls that make one return at once; it knows its shape, dtype and device
// without asking. What is wrong and can be known here (shapes, dtypes) is known at once, what fails
// on the server comes later (operands of two devices among it: the error names the copy that mends
// it, and its price); both are a state of the tensor: status() tells it, fetch() and sync() return
// it, and ops on a failed tensor fail with the root cause. Nothing aborts and nothing throws.
// Thread safety: any thread; one object is not for two threads at the same time, copies of it are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "devserver/types.h"
#include "server/base/error_details.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver::client {

class Client;
class Connection;     // to one server; internal
struct TensorHandle;  // what the copies of one Tensor share; internal
struct FetchTicket;   // a fetch on its way; internal

// The dtype whose elements are T, and those that fetch<T>() can give.
template <typename T>
struct ElementOf;
template <>
struct ElementOf<float> {
  static constexpr DType kDType = DType::kF32;
};
template <>
struct ElementOf<double> {
  static constexpr DType kDType = DType::kF64;
};
template <>
struct ElementOf<int32_t> {
  static constexpr DType kDType = DType::kI32;
};
template <>
struct ElementOf<int64_t> {
  static constexpr DType kDType = DType::kI64;
};
template <>
struct ElementOf<uint8_t> {
  static constexpr DType kDType = DType::kU8;
};

class Device {
 public:
  Device() = default;  // no device: ops on it fail

  const std::string& name() const;  // "gpu:0"; "" for no device
  bool is_gpu() const;
  // As it was when the client connected. For memory and load as they are now: Client::devices().
  const DeviceInfo& info() const;
  // Client::try_gpu's honest answer when this is not the device that was asked for; else empty.
  const std::string& note() const { return note_; }

  friend bool operator==(const Device& a, const Device& b) {
    return a.connection_ == b.connection_ && a.info_ == b.info_;
  }

 private:
  friend class Client;
  friend class Connection;
  friend class Tensor;
  Device(std::shared_ptr<Connection> connection, const DeviceInfo* info, std::string note = "");

  std::shared_ptr<Connection> connection_;
  const DeviceInfo* info_ = nullptr;  // owned by the connection
  std::string note_;
};

// A fetch on its way, so that many can be under way at once.
class PendingFetch {
 public:
  PendingFetch() = default;

  // True once get() would not wait.
  bool ready() const;
  // The elements, row-major, as Tensor::fetch<T>() gives them. May be called again.
  template <typename T>
  absl::StatusOr<std::vector<T>> get(absl::Duration timeout = kDefaultTimeout) const;

 private:
  friend class Tensor;
  friend class Connection;
  std::shared_ptr<TensorHandle> tensor_;
  std::shared_ptr<FetchTicket>
      ticket_;  // null: the tensor had failed, or is too large for the command stream
};

struct TransferOptions {
  Progress progress;
  // kDefaultTimeout: the client's, and one second more for each 10 MB.
  absl::Duration timeout = kDefaultTimeout;
  std::string label;  // of an uploaded tensor: free text for people
};

// The last copy's end deletes the tensor on the server, after the commands that use it.
class Tensor {
 public:
  Tensor() = default;  // no tensor: everything on it fails

  uint64_t id() const;  // on the server; 0 for one that failed before it was sent
  const Shape& shape() const;
  DType dtype() const;
  const TensorSpec& spec() const;
  uint64_t size_bytes() const { return spec().size_bytes(); }
  Device device() const;
  const std::string& device_name() const;

  // What is known now, without asking: OK, or why the tensor failed.
  absl::Status status() const;
  // Waits until the server has finished the tensor. OK, or why it failed.
  absl::Status sync(absl::Duration timeout = kDefaultTimeout) const;

  // The elements, row-major. T is the dtype's own type (f32: float, f64: double, i32: int32_t, i64:
  // int64_t, u8 and bool: uint8_t); float also reads f16 and bf16, exactly. INVALID_ARGUMENT names
  // the dtype and the cast for any other.
  template <typename T>
  absl::StatusOr<std::vector<T>> fetch(absl::Duration timeout = kDefaultTimeout) const;
  // The element of a tensor that has one.
  template <typename T>
  absl::StatusOr<T> item(absl::Duration timeout = kDefaultTimeout) const;
  // Asks for the elements without waiting.
  PendingFetch fetch_async() const;
  // The packed elements into `target`, which must be size_bytes() long. On an error `target` holds
  // anything.
  absl::Status fetch_into(std::span<std::byte> target, const TransferOptions& options = {}) const;

  // A new tensor with the same elements on `device`; also when this one is there already.
  // `max_seconds` above 0 refuses the copy (FAILED_PRECONDITION, kTooExpensive) when its quote is
  // higher or unknown.
  Tensor copy_to(const Device& device, double max_seconds = 0) const;
  // This very tensor if it is on `device` already, else a copy.
  Tensor to(const Device& device) const;
  // What the copy that made this tensor cost; waits for it. FAILED_PRECONDITION if no copy made it.
  absl::StatusOr<Receipt> receipt(absl::Duration timeout = kDefaultTimeout) const;

  // Two values of the same tensor on the server.
  bool same_as(const Tensor& other) const { return handle_ == other.handle_ && handle_ != nullptr; }
  // "[[1, 2, 3],\n [4, 5, 6]] f32[2,3] on gpu:0"; long axes are shortened. An error reads as its
  // message.
  std::string to_string(absl::Duration timeout = kDefaultTimeout) const;

 private:
  friend class Connection;
  friend class Client;
  explicit Tensor(std::shared_ptr<TensorHandle> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<TensorHandle> handle_;
};

// The templates above are instantiated for float, double, int32_t, int64_t and uint8_t (tensor.cc).

}  // namespace devserver::client
