// cast.
#include <cstring>

#include "server/device/cpu/convert.h"
#include "server/device/cpu/kernels.h"

namespace devserver {
namespace {

template <typename To, typename From>
void CastRange(const From* __restrict source, To* __restrict target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    target[i] = ConvertElement<To>(source[i]);
  }
}

template <typename To>
void CastTo(const OpCall& call, HostMath& math) {
  const int64_t n = call.output_spec->shape.element_count();
  VisitDType(call.inputs[0].spec->dtype, [&]<typename From>(TypeTag<From>) {
    ForChunks(math.ThreadsFor(static_cast<double>(n)), n, kChunk, [&](int64_t begin, int64_t end) {
      CastRange(InputData<From>(call, 0) + begin, OutputData<To>(call) + begin, end - begin);
    });
  });
}

}  // namespace

void RunCast(const OpCall& call, HostMath& math) {
  const DType target = call.output_spec->dtype;
  if (target == call.inputs[0].spec->dtype) {
    std::memcpy(call.output, call.inputs[0].data, call.output_spec->size_bytes());
  } else if (target == DType::kBool) {
    CastTo<Bool>(call, math);
  } else {
    VisitDType(target, [&]<typename To>(TypeTag<To>) { CastTo<To>(call, math); });
  }
}

}  // namespace devserver
