// The exercises 3 and 4 of the walk-through (client/examples/use_gpu.cc), through the client
// library.
//
// Exercise 3: a thousand products of 100×100, each of the one before, with the Frobenius norm of
// each. The control is the same loop in this process: oneDNN on one thread, and the norm.
// Exercise 4: two products on two simulated GPUs at once against one after the other on one. The
// control is two plain threads against one.

// ctest: args=--benchmark_filter=^exercise
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "server/base/status_macros.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/local_math.h"
#include "tests/bench/servers.h"

namespace devserver::bench {
namespace {

constexpr int64_t kChainSize = 100;
constexpr int kChainLength = 1000;

enum class Log {
  kKept,       // on the device, fetched once at the end
  kPipelined,  // each norm asked for at once, read at the end
  kAwaited,    // each norm fetched before the next product is given
};

absl::StatusOr<client::Tensor> UploadFloats(const client::Client& connected,
                                            const std::string& device, const Floats& values,
                                            int64_t size) {
  ASSIGN_OR_RETURN(const client::Device target, connected.device(device));
  client::Tensor tensor =
      client::from(std::vector<float>(values.begin(), values.end()), {size, size}, target);
  RETURN_IF_ERROR(tensor.sync());
  return tensor;
}

class Chain {
 public:
  static absl::StatusOr<std::shared_ptr<Chain>> Make(Log log) {
    ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
    ASSIGN_OR_RETURN(client::Client connected, client::Client::connect(address));
    std::shared_ptr<Chain> chain(new Chain(log, std::move(connected)));
    ASSIGN_OR_RETURN(chain->x_, UploadFloats(chain->client_, "gpu:0", chain->local_x_, kChainSize));
    ASSIGN_OR_RETURN(chain->w_, UploadFloats(chain->client_, "gpu:0", chain->local_w_, kChainSize));
    return chain;
  }

  absl::Status RunSubject() {
    switch (log_) {
      case Log::kKept:
        return RunKept();
      case Log::kPipelined:
        return RunPipelined();
      case Log::kAwaited:
        return RunAwaited();
    }
    return absl::OkStatus();
  }

  absl::Status RunControl() {
    local_y_ = local_x_;
    for (float& norm : local_norms_) {
      local_.Run(local_y_.data(), local_w_.data(), nullptr, local_next_.data());
      std::swap(local_y_, local_next_);
      norm = FrobeniusNorm(local_y_);
    }
    return absl::OkStatus();
  }

  absl::Status Check() const {
    if (norms_.size() != local_norms_.size()) {
      return absl::InternalError(absl::StrFormat("%d norms came", norms_.size()));
    }
    for (size_t i = 0; i < norms_.size(); ++i) {
      if (!(std::abs(norms_[i] - local_norms_[i]) <= 1e-4f * local_norms_[i])) {
        return absl::InternalError(
            absl::StrFormat("norm %d is %g, in process %g", i, norms_[i], local_norms_[i]));
      }
    }
    return absl::OkStatus();
  }

 private:
  Chain(Log log, client::Client connected)
      : log_(log),
        client_(std::move(connected)),
        local_(kChainSize, kChainSize, kChainSize, false, 1),
        local_x_(RandomFloats(kChainSize * kChainSize, 1)),
        local_w_(Rotation(kChainSize, 2)),
        local_next_(local_x_.size()),
        local_norms_(kChainLength) {}

  absl::Status RunKept() {
    client::Tensor y = x_;
    std::vector<client::Tensor> log;
    log.reserve(kChainLength);
    for (int i = 0; i < kChainLength; ++i) {
      y = client::matmul(y, w_);
      log.push_back(client::norm(y, {}, true));
    }
    ASSIGN_OR_RETURN(norms_, client::concat(log).fetch<float>());
    return absl::OkStatus();
  }

  absl::Status RunPipelined() {
    client::Tensor y = x_;
    std::vector<client::PendingFetch> log;
    log.reserve(kChainLength);
    for (int i = 0; i < kChainLength; ++i) {
      y = client::matmul(y, w_);
      log.push_back(client::norm(y).fetch_async());
    }
    norms_.clear();
    for (const client::PendingFetch& pending : log) {
      ASSIGN_OR_RETURN(const std::vector<float> norm, pending.get<float>());
      norms_.push_back(norm.at(0));
    }
    return absl::OkStatus();
  }

  absl::Status RunAwaited() {
    client::Tensor y = x_;
    norms_.clear();
    for (int i = 0; i < kChainLength; ++i) {
      y = client::matmul(y, w_);
      ASSIGN_OR_RETURN(const float norm, client::norm(y).item<float>());
      norms_.push_back(norm);
    }
    return absl::OkStatus();
  }

  const Log log_;
  const client::Client client_;
  client::Tensor x_;
  client::Tensor w_;
  std::vector<float> norms_;
  LocalProduct local_;
  const Floats local_x_;
  const Floats local_w_;
  Floats local_y_;
  Floats local_next_;
  std::vector<float> local_norms_;
};

// One operation is one run of a thousand.
absl::Status Repeat(int64_t count, const std::function<absl::Status()>& run) {
  for (int64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(run());
  }
  return absl::OkStatus();
}

void RegisterChain(const char* name, Log log, double goal) {
  Comparison comparison;
  comparison.name = absl::StrFormat("exercise3/%s", name);
  comparison.ratio_goal = goal;
  Register(comparison, [log]() -> absl::StatusOr<Sides> {
    ASSIGN_OR_RETURN(const std::shared_ptr<Chain> chain, Chain::Make(log));
    Sides sides;
    sides.subject.run = [chain](int64_t count) {
      return Repeat(count, [&] { return chain->RunSubject(); });
    };
    sides.control.run = [chain](int64_t count) {
      return Repeat(count, [&] { return chain->RunControl(); });
    };
    sides.check = [chain] { return chain->Check(); };
    return sides;
  });
}

class Pair {
 public:
  static absl::StatusOr<std::shared_ptr<Pair>> Make(int64_t size) {
    ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
    ASSIGN_OR_RETURN(client::Client connected, client::Client::connect(address));
    std::shared_ptr<Pair> pair(new Pair(size, std::move(connected)));
    for (const std::string device : {"gpu:0", "gpu:1"}) {
      ASSIGN_OR_RETURN(client::Tensor tensor,
                       UploadFloats(pair->client_, device, pair->local_a_, size));
      pair->a_.push_back(std::move(tensor));
    }
    return pair;
  }

  // Two products: both on gpu:0, or one on each GPU.
  absl::Status RunSubject(bool at_once) {
    const client::Tensor& other = at_once ? a_[1] : a_[0];
    const client::Tensor first = client::matmul(a_[0], a_[0]);
    const client::Tensor second = client::matmul(other, other);
    RETURN_IF_ERROR(first.sync());
    RETURN_IF_ERROR(second.sync());
    result_ = second;
    return absl::OkStatus();
  }

  absl::Status RunControl(bool at_once) {
    if (at_once) {
      std::thread other([this] { RunLocal(1); });
      RunLocal(0);
      other.join();
    } else {
      RunLocal(0);
      RunLocal(0);
    }
    return absl::OkStatus();
  }

  absl::Status Check() const {
    ASSIGN_OR_RETURN(const std::vector<float> values, result_.fetch<float>());
    const float bound = 1e-6f * static_cast<float>(size_);
    for (size_t i = 0; i < local_result_[0].size(); ++i) {
      if (!(std::abs(values.at(i) - local_result_[0][i]) <= bound)) {
        return absl::InternalError(
            absl::StrFormat("element %d is %g, in process %g", i, values[i], local_result_[0][i]));
      }
    }
    return absl::OkStatus();
  }

 private:
  Pair(int64_t size, client::Client connected)
      : size_(size),
        client_(std::move(connected)),
        local_a_(RandomFloats(size * size, 1)),
        local_result_{Floats(local_a_.size()), Floats(local_a_.size())} {}

  void RunLocal(size_t slot) {
    FlushDenormals();
    local_[slot].Run(local_a_.data(), local_a_.data(), nullptr, local_result_[slot].data());
  }

  const int64_t size_;
  const client::Client client_;
  std::vector<client::Tensor> a_;  // the same values on gpu:0 and gpu:1
  client::Tensor result_;
  LocalProduct local_[2] = {{size_, size_, size_, false, 1}, {size_, size_, size_, false, 1}};
  const Floats local_a_;
  Floats local_result_[2];
};

// One operation is two products.
void RegisterPair(int64_t size) {
  Comparison comparison;
  comparison.name = absl::StrFormat("exercise4/two_gpus/%d", size);
  comparison.unit = Unit::kFlops;
  comparison.per_operation = 4.0 * static_cast<double>(size * size * size);
  comparison.compare = Compare::kScaling;
  comparison.ratio_goal = 1.85;
  comparison.slow = size > 1024;
  Register(comparison, [size]() -> absl::StatusOr<Sides> {
    ASSIGN_OR_RETURN(const std::shared_ptr<Pair> pair, Pair::Make(size));
    const auto subject = [pair](bool at_once) {
      return Side{nullptr, [pair, at_once](int64_t count) {
                    return Repeat(count, [&] { return pair->RunSubject(at_once); });
                  }};
    };
    const auto control = [pair](bool at_once) {
      return Side{nullptr, [pair, at_once](int64_t count) {
                    return Repeat(count, [&] { return pair->RunControl(at_once); });
                  }};
    };
    return Sides{subject(true), control(true), subject(false), control(false),
                 [pair] { return pair->Check(); }};
  });
}

bool RegisterAll() {
  RegisterChain("log_kept", Log::kKept, 1.15);
  RegisterChain("norms_pipelined", Log::kPipelined, 0);
  RegisterChain("norms_awaited", Log::kAwaited, 0);
  RegisterPair(1024);
  RegisterPair(2048);
  return true;
}

const bool kRegistered = RegisterAll();

}  // namespace
}  // namespace devserver::bench
