#include "server/device/cpu/host_ops.h"

#include <cassert>
#include <new>

#include "absl/strings/str_format.h"
#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

void Dispatch(const OpCall& call, HostMath& math) {
  switch (call.code) {
    case OpCode::kFull:
    case OpCode::kArange:
    case OpCode::kEye:
    case OpCode::kUniform:
    case OpCode::kNormal:
      return RunSource(call, math);
    case OpCode::kMatMul:
    case OpCode::kDense:
      return RunProduct(call, math);
    case OpCode::kAdd:
    case OpCode::kSub:
    case OpCode::kMul:
    case OpCode::kDiv:
    case OpCode::kMaximum:
    case OpCode::kEqual:
      return RunBinary(call, math);
    case OpCode::kNeg:
    case OpCode::kExp:
    case OpCode::kLog:
    case OpCode::kSqrt:
    case OpCode::kRelu:
    case OpCode::kGelu:
    case OpCode::kTanh:
    case OpCode::kSigmoid:
      return RunUnary(call, math);
    case OpCode::kCast:
      return RunCast(call, math);
    case OpCode::kSoftmax:
      return RunSoftmax(call, math);
    case OpCode::kSum:
    case OpCode::kMean:
    case OpCode::kMax:
    case OpCode::kArgmax:
    case OpCode::kNorm:
      return RunReduction(call, math);
    case OpCode::kTranspose:
    case OpCode::kReshape:
    case OpCode::kSlice:
    case OpCode::kConcat:
      return RunMove(call, math);
  }
}

}  // namespace

absl::Status RunHostOp(const OpCall& call, HostMath& math) {
  if (call.output_spec->shape.element_count() == 0) {
    return absl::OkStatus();
  }
  HostMath::PrepareThread();
  try {
    Dispatch(call, math);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s to %s: the host has no memory for a temporary copy; free some",
                        GetOp(call.code).name, call.output_spec->ToString()));
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrFormat("%s to %s: oneDNN: %s (status %d)",
                                               GetOp(call.code).name, call.output_spec->ToString(),
                                               error.what(), static_cast<int>(error.status)));
  }
  math.TrimScratch();
  return absl::OkStatus();
}

}  // namespace devserver
