// A session: a lease on a set of handles. It checks commands, keeps the handle table, and queues
// work on devices.
//
// Thread safety: any thread. The calls that queue work are serialised, which keeps waits between
// devices free of cycles: every wait and every place in a queue points to something that was queued
// earlier. Errors: what can be refused at once is the returned status; what fails later fails the
// tensor (tensor.h). Messages name the values and the cure; typed reasons are in
// base/error_details.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/session/account.h"
#include "server/session/device_set.h"
#include "server/session/limits.h"
#include "server/session/tensor.h"

namespace devserver {

class Execution;

// What every session of a server shares. All outlive the sessions.
struct Surroundings {
  const DeviceSet* devices = nullptr;
  const Limits* limits = nullptr;
  const Clock* clock = nullptr;
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  struct Options {
    std::string name;
    std::string peer;
    std::string token;    // empty for a default session
    uint64_t serial = 0;  // 1, 2, 3 in the order of opening; public, unlike the token
    Seconds lease{0};
    bool is_default = false;
  };

  // How one command wants to be run.
  struct Request {
    uint64_t id = 0;              // of the result; 0: the next small number
    uint64_t command_number = 0;  // of an Execute stream
    bool measure_time = false;
    // A refused command leaves a failed tensor under its id (if it is not 0), so that what depends
    // on it fails with the root cause and not with "no such tensor". For batches, whose later
    // commands are already written.
    bool leave_failed = false;
    std::string label;
    // Called once if and only if the command is accepted: when its tensor is done. See
    // Tensor::DoneCallback.
    Tensor::DoneCallback done;
  };

  Session(Options options, Surroundings surroundings);
  ~Session();

  // Makes a tensor of a source op; `attributes->shape` and `attributes->dtype` say which.
  absl::StatusOr<TensorRef> Create(OpCode source, std::unique_ptr<const OpAttributes> attributes,
                                   std::string_view device, Request request);
  // `values` are the packed elements; their size was checked against `spec`.
  absl::StatusOr<TensorRef> CreateFromValues(const TensorSpec& spec, std::vector<std::byte> values,
                                             std::string_view device, Request request);
  // `attributes` may be null: all defaults.
  absl::StatusOr<TensorRef> Apply(OpCode code, std::span<const uint64_t> inputs,
                                  std::unique_ptr<const OpAttributes> attributes, Request request);
  // Always a new tensor. `max_seconds` 0: no bound; else refused (kTooExpensive) if the quote is
  // above it or unknown.
  absl::StatusOr<TensorRef> Copy(uint64_t source, std::string_view device, double max_seconds,
                                 Request request);
  struct Ensured {
    TensorRef tensor;
    bool copied;
  };
  // The tensor itself if it is on `device` already.
  absl::StatusOr<Ensured> EnsureOn(uint64_t source, std::string_view device, double max_seconds,
                                   Request request);
  // Also what the session's failed commands left. NOT_FOUND (kNoSuchTensor) names the id and the
  // session.
  absl::StatusOr<TensorRef> Find(uint64_t id);
  // Takes handles out of the table; work that uses them still runs. All or nothing: NOT_FOUND
  // deletes none. Returns the bytes that the handles held.
  absl::StatusOr<uint64_t> Delete(std::span<const uint64_t> ids);
  // A failed tensor under `id`, for a command of a batch that could not even be decoded.
  void LeaveFailed(uint64_t id, uint64_t command_number, const absl::Status& status);

  // An upload takes its memory before the first byte arrives and appears in the table when the last
  // one is there; until then there is nothing to clean up but the reference. If `id` names the
  // result of the same upload already, that tensor is returned, done() and to be compared.
  absl::StatusOr<TensorRef> BeginUpload(const TensorSpec& spec, std::string_view device,
                                        uint64_t id, std::string label);
  absl::Status CommitUpload(const TensorRef& tensor);

  // Tensors by id, from `after` (exclusive) on, at most `count_max`.
  std::vector<TensorRef> List(uint64_t after, size_t count_max) const;
  size_t tensor_count() const;

  // Renews the lease. Every call and every message of the client does.
  void Renew();
  bool Expired(TimePoint now) const;
  Seconds lease_remaining() const;
  // Empties the table; queued work does not start any more. Later calls get kSessionExpired.
  // Returns bytes held.
  uint64_t Close();

  const Options& options() const { return options_; }
  const Surroundings& surroundings() const { return surroundings_; }
  const Account& account() const { return *account_; }
  TimePoint opened() const { return opened_; }
  // The session's Execute stream; outlives connections.
  Execution& execution() const { return *execution_; }

 private:
  struct Accepted {
    TensorRef tensor;
    bool is_replay;
  };
  using Work = absl::FunctionRef<void(Tensor&)>;  // gives a new tensor its work

  absl::StatusOr<TensorRef> Finish(absl::StatusOr<Accepted> accepted, Request& request);
  // The recorded result of the same command, null if `id` is new; ALREADY_EXISTS if another command
  // made it.
  absl::StatusOr<TensorRef> FindReplay(uint64_t id, uint64_t fingerprint) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null if there is none.
  const TensorRef* FindLocked(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoSuchTensor(uint64_t id, std::string_view what) const;
  absl::StatusOr<TensorRef> FindInput(uint64_t id, std::string_view what) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Accepted> ApplyLocked(OpCode code, std::span<const uint64_t> ids,
                                       std::unique_ptr<const OpAttributes> attributes,
                                       uint64_t fingerprint, Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Accepted> CopyLocked(uint64_t source, std::string_view device, double max_seconds,
                                      uint64_t fingerprint, Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Accepted> CreateLocked(const TensorSpec& spec, std::string_view device,
                                        uint64_t fingerprint, Request& request, Work work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status DeviceMismatch(OpCode code, std::span<const TensorRef> inputs) const;
  // Checks that one tensor of `spec` could ever fit `device_index` and the quota.
  absl::Status CheckFits(const TensorSpec& spec, size_t device_index) const;
  TensorRef Launch(const TensorSpec& spec, size_t device_index, uint64_t fingerprint,
                   Request& request, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveFailedLocked(uint64_t id, uint64_t command_number, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t PickId() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TimePoint last_seen() const;

  // Constant after construction.
  const Options options_;
  const Surroundings surroundings_;
  const std::shared_ptr<Account> account_;
  const TimePoint opened_;
  const std::shared_ptr<Execution> execution_;
  std::atomic<int64_t> last_seen_;  // Ticks of TimePoint; orders nothing.

  // Guarded by mu_.
  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, TensorRef> tensors_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace devserver
