// matmul and dense through the client library against the same oneDNN call in this process.
//
//   awaited     one product at a time: the call, and waiting until the server has finished it
//   pipelined   many products given one after the other, then one wait
// gpu:0 is a simulated GPU: one thread. cpu:0 takes all CPUs for products above 50 MFLOP; so does
// its control.

// ctest: args=--benchmark_filter=^(matmul|dense)/
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "devserver/client.h"
#include "server/base/status_macros.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/local_math.h"
#include "tests/bench/servers.h"

namespace devserver::bench {
namespace {

struct Case {
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  bool dense = false;
  const char* device = "";
  bool pipelined = false;
};

// Both sides of one case, with their operands.
class Products {
 public:
  static absl::StatusOr<std::shared_ptr<Products>> Make(const Case& wanted) {
    ASSIGN_OR_RETURN(const std::string address, SubjectAddress());
    ASSIGN_OR_RETURN(client::Client connected, client::Client::connect(address));
    std::shared_ptr<Products> products(new Products(wanted, std::move(connected)));
    RETURN_IF_ERROR(products->Upload());
    return products;
  }

  absl::Status RunSubject(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      // The result of the one before is dropped, and deleted on the server, as in any loop.
      result_ =
          case_.dense ? client::dense(a_, b_, bias_, Activation::kRelu) : client::matmul(a_, b_);
      if (!case_.pipelined) {
        RETURN_IF_ERROR(result_.sync());
      }
    }
    return result_.sync();
  }

  absl::Status RunControl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      local_.Run(local_a_.data(), local_b_.data(), local_bias_.data(), local_result_.data());
    }
    return absl::OkStatus();
  }

  absl::Status Check() {
    ASSIGN_OR_RETURN(const std::vector<float> values, result_.fetch<float>());
    if (values.size() != local_result_.size()) {
      return absl::InternalError("the result has another size");
    }
    // Sums of k products below 1, in any order.
    const float bound = 1e-6f * static_cast<float>(case_.k);
    for (size_t i = 0; i < values.size(); ++i) {
      if (!(std::abs(values[i] - local_result_[i]) <= bound)) {
        return absl::InternalError(
            absl::StrFormat("element %d is %g, in process %g", i, values[i], local_result_[i]));
      }
    }
    return absl::OkStatus();
  }

 private:
  Products(const Case& wanted, client::Client connected)
      : case_(wanted),
        client_(std::move(connected)),
        local_(wanted.m, wanted.k, wanted.n, wanted.dense, Threads(wanted)),
        local_a_(RandomFloats(wanted.m * wanted.k, 1)),
        local_b_(RandomFloats(wanted.k * wanted.n, 2)),
        local_bias_(RandomFloats(wanted.n, 3)),
        local_result_(static_cast<size_t>(wanted.m * wanted.n)) {}

  static int Threads(const Case& wanted) {
    const double flops = 2.0 * static_cast<double>(wanted.m * wanted.k * wanted.n);
    return std::string(wanted.device) == "cpu:0" ? ThreadsOfCpu(flops) : 1;
  }

  absl::Status Upload() {
    ASSIGN_OR_RETURN(const client::Device device, client_.device(case_.device));
    const auto upload = [&](const Floats& values, std::vector<int64_t> dims) {
      return client::from(std::vector<float>(values.begin(), values.end()),
                          client::Dims(dims.begin(), dims.end()), device);
    };
    a_ = upload(local_a_, {case_.m, case_.k});
    b_ = upload(local_b_, {case_.k, case_.n});
    bias_ = upload(local_bias_, {case_.n});
    RETURN_IF_ERROR(a_.sync());
    RETURN_IF_ERROR(b_.sync());
    return bias_.sync();
  }

  const Case case_;
  const client::Client client_;
  client::Tensor a_;
  client::Tensor b_;
  client::Tensor bias_;
  client::Tensor result_;
  LocalProduct local_;
  const Floats local_a_;
  const Floats local_b_;
  const Floats local_bias_;
  Floats local_result_;
};

absl::StatusOr<Sides> MakeProducts(const Case& wanted) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Products> products, Products::Make(wanted));
  Sides sides;
  sides.subject.run = [products](int64_t count) { return products->RunSubject(count); };
  sides.control.run = [products](int64_t count) { return products->RunControl(count); };
  sides.check = [products] { return products->Check(); };
  return sides;
}

void RegisterCase(const Case& wanted, double goal) {
  Comparison comparison;
  const std::string shape = wanted.dense
                                ? absl::StrFormat("dense/%dx%dx%d", wanted.m, wanted.k, wanted.n)
                                : absl::StrFormat("matmul/%d", wanted.m);
  comparison.name =
      absl::StrFormat("%s/%s/%s", shape, wanted.device, wanted.pipelined ? "pipelined" : "awaited");
  comparison.unit = Unit::kFlops;
  comparison.per_operation = 2.0 * static_cast<double>(wanted.m * wanted.k * wanted.n);
  comparison.compare = Compare::kSpeed;
  comparison.ratio_goal = goal;
  comparison.slow = comparison.per_operation > 1e9;
  Register(comparison, [wanted] { return MakeProducts(wanted); });
}

bool RegisterAll() {
  constexpr double kGoal = 0.95;
  for (const char* const device : {"gpu:0", "cpu:0"}) {
    for (const int64_t n : {32, 64, 100, 128, 256, 512, 1024, 2048}) {
      for (const bool pipelined : {false, true}) {
        if (n < 2048 || !pipelined) {  // There one round trip is nothing.
          RegisterCase({n, n, n, false, device, pipelined}, n == 2048 ? kGoal : 0);
        }
      }
    }
    for (const int64_t batch : {32, 256}) {
      for (const bool pipelined : {false, true}) {
        RegisterCase({batch, 784, 512, true, device, pipelined}, batch == 256 ? kGoal : 0);
      }
    }
  }
  return true;
}

const bool kRegistered = RegisterAll();

}  // namespace
}  // namespace devserver::bench
