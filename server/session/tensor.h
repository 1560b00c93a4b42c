// One entry of a session's handle table: a tensor that never changes, and until it is there the
// work that makes it.
//
// States go forward only: waiting (for an input of another device) -> queued (on its device) ->
// ready or failed. A failure belongs to the tensor: whoever uses it fails with FAILED_PRECONDITION
// that quotes the root cause. Thread safety: any thread may read what the state allows; Issue and
// Finish run on the device's queue thread. Lifetime: shared by the handle table, by queued work
// that reads it, and by replies under way. The bytes go back to the device with the last of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/clock.h"
#include "server/device/device_queue.h"
#include "server/fabric/fabric.h"
#include "server/session/account.h"
#include "server/tensor/op_table.h"
#include "server/tensor/shape.h"

namespace devserver {

class Tensor;
using TensorRef = std::shared_ptr<Tensor>;

class Tensor final : public DeviceTask, public std::enable_shared_from_this<Tensor> {
 public:
  enum class State : uint8_t { kWaiting, kQueued, kReady, kFailed };
  using Inputs = absl::InlinedVector<TensorRef, 2>;
  // Called once, on the thread that finished the tensor, without locks. Must not block.
  using DoneCallback = absl::AnyInvocable<void(Tensor&)>;

  struct Identity {
    uint64_t id = 0;
    DeviceQueue* queue =
        nullptr;  // null only for a command that was refused before its device was known
    size_t device_index = 0;
    std::shared_ptr<Account> account;
    uint64_t fingerprint =
        0;  // of the command, to tell a replay from another command with the same id
    uint64_t command_number = 0;
    TimePoint created;
    TensorSpec spec;
  };

  explicit Tensor(Identity identity);
  ~Tensor() override;

  // --- Work, set before Start.
  void SetOp(OpCode code, Inputs inputs, std::unique_ptr<const OpAttributes> attributes);
  void SetCopy(TensorRef source, Quote quote);
  // `link_seconds`: what bringing them to a simulated device takes on its clock; 0 elsewhere.
  void SetValues(std::vector<std::byte> values, double link_seconds);
  void SetLabel(std::string label) { rare().label = std::move(label); }
  void SetDone(DoneCallback done) { done_ = std::move(done); }
  // Measure how long the work takes on the device (costs two clock readings).
  void MeasureTime() { rare().measure_time = true; }
  // Queues the work as soon as inputs on other devices are there. Calls of one session are
  // serialised by it.
  static void Start(const TensorRef& tensor);

  // --- Without work: for uploads and for commands that were refused.
  void SetBuffer(DeviceBuffer buffer);  // bytes were reserved in the account already
  std::byte* upload_data() { return buffer_.data(); }
  void Fail(absl::Status status);  // status must not be OK
  void Complete();                 // ready

  // Calls `done` when the tensor is ready or failed; at once, on this thread, if it is already.
  void WhenDone(DoneCallback done);

  State state() const { return state_.load(std::memory_order_acquire); }
  bool done() const { return state() >= State::kReady; }
  uint64_t id() const { return identity_.id; }
  const TensorSpec& spec() const { return identity_.spec; }
  uint64_t size_bytes() const { return identity_.spec.size_bytes(); }
  DeviceQueue* queue() const { return identity_.queue; }
  size_t device_index() const { return identity_.device_index; }
  const std::string& device_name() const;
  uint64_t fingerprint() const { return identity_.fingerprint; }
  uint64_t command_number() const { return identity_.command_number; }
  const std::string& label() const;
  TimePoint created() const { return identity_.created; }
  TimePoint last_used() const {
    return TimePoint(TimePoint::duration(last_used_.load(std::memory_order_relaxed)));
  }
  void Touch(TimePoint now) {
    const int64_t ticks = now.time_since_epoch().count();
    // Not to take the cache line from a device that reads the tensor.
    if (last_used_.load(std::memory_order_relaxed) != ticks) {
      last_used_.store(ticks, std::memory_order_relaxed);
    }
  }

  // --- Only when done.
  const absl::Status& status() const { return status_; }  // OK when ready
  // The elements, where the device lets the host read them.
  std::span<const std::byte> host_bytes() const;
  const std::byte* data() const { return buffer_.data(); }
  double measured_seconds() const { return rare_ == nullptr ? 0 : rare_->measured_seconds; }
  double simulated_seconds() const { return rare_ == nullptr ? 0 : rare_->simulated_seconds; }
  bool is_copy() const { return rare_ != nullptr && rare_->quote.has_value(); }
  const Quote& quote() const { return *rare_->quote; }  // of a copy

  // What a command that uses this failed tensor gets: FAILED_PRECONDITION, origin and root cause in
  // text and details.
  absl::Status InputFailed(std::string_view what) const;

  // DeviceTask.
  bool Issue(Device& device) override;
  void Finish(const absl::Status& synchronized) override;

 private:
  absl::Status CheckInputs() const;
  absl::Status DoWork(Device& device);
  absl::Status RunOp(Device& device);
  absl::Status CopyFromSource(Device& device);
  static void InputArrived(const TensorRef& tensor);
  void Enter(State state);

  // What few tensors have. Constant after Start, but for `values`, which go when they are used, and
  // what was measured, which is constant when the tensor is done.
  struct Rare {
    std::string label;
    std::optional<std::vector<std::byte>> values;  // set for a tensor of given values
    double link_seconds = 0;
    bool measure_time = false;
    std::optional<const Quote> quote;  // set for a copy
    double measured_seconds = 0;
    double simulated_seconds = 0;
  };
  struct Waiter {
    DoneCallback done;
    Waiter* next;
  };
  Rare& rare();             // makes it
  static Waiter* Closed();  // what the list of waiters ends with when nobody is waited for any more
  bool measures_time() const { return rare_ != nullptr && rare_->measure_time; }
  bool has_values() const { return rare_ != nullptr && rare_->values.has_value(); }

  // A tensor is made by one thread, computed by another and freed by the first, at up to a million
  // a second: what they write comes first, to share few cache lines.

  std::atomic<State> state_ =
      State::kWaiting;  // Publishes the members below when it becomes ready or failed.
  std::atomic<uint32_t> inputs_missing_ = 1;  // The last one to take it to 0 queues the work.

  // Touched only by the queue thread until the tensor is done, constant then.
  bool issued_ = false;
  bool bytes_reserved_ = false;
  DeviceBuffer buffer_;
  absl::Status status_;
  Inputs inputs_;
  std::unique_ptr<const OpAttributes> attributes_;  // null: all defaults

  // Callbacks, last first, until the tensor is done; then closed (tensor.cc).
  std::atomic<Waiter*> waiters_ = nullptr;
  std::atomic<int64_t> last_used_;

  // Constant after Start.
  OpCode code_ = OpCode::kFull;
  std::unique_ptr<Rare> rare_;
  DoneCallback done_;
  const Identity identity_;
};

}  // namespace devserver
