#include "server/device/cpu/host_math.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace devserver {
namespace {

constexpr int kScratchpadSlot = HostMath::kScratchSlots - 1;  // The last one is oneDNN's.

using Tag = dnnl::memory::format_tag;

// Without the batch dimension if the whole product has none: oneDNN is faster so.
dnnl::memory::desc OperandDesc(const ProductShape& product, int64_t batch, int64_t rows,
                               int64_t columns, bool transposed) {
  constexpr auto kF32 = dnnl::memory::data_type::f32;
  if (product.batch == 1) {
    return {{rows, columns}, kF32, transposed ? Tag::ba : Tag::ab};
  }
  return {{batch, rows, columns}, kF32, transposed ? Tag::acb : Tag::abc};
}

dnnl::primitive_attr ProductAttributes(Activation activation) {
  dnnl::primitive_attr attributes;
  // Our own scratchpad: the library's belongs to the thread that made the primitive, and leaks if
  // another destroys it.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  constexpr dnnl::algorithm kAlgorithms[] = {
      dnnl::algorithm::undef, dnnl::algorithm::eltwise_relu, dnnl::algorithm::eltwise_gelu_tanh,
      dnnl::algorithm::eltwise_tanh, dnnl::algorithm::eltwise_logistic};
  if (activation != Activation::kNone) {
    dnnl::post_ops ops;
    ops.append_eltwise(1.0f, kAlgorithms[static_cast<size_t>(activation)], 0.0f, 0.0f);
    attributes.set_post_ops(ops);
  }
  return attributes;
}

}  // namespace

HostMath::HostMath(int threads, HostMemory* host)
    : threads_(threads), host_(host), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  assert(threads >= 1);
}

void HostMath::PrepareThread() {
  thread_local bool prepared = false;
  if (!prepared) {
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
    prepared = true;
  }
}

void HostMath::FreeAligned::operator()(std::byte* data) const {
  ::operator delete(data, std::align_val_t{64});
}

std::byte* HostMath::Scratch(int slot, size_t size_bytes) {
  ScratchBlock& block = scratch_[slot];
  if (block.size_bytes < size_bytes) {
    FreeBlock(block);
    if (!host_->TryReserve(size_bytes)) {
      host_->TrimPools();
      if (!host_->TryReserve(size_bytes)) {
        throw std::bad_alloc();
      }
    }
    block.data.reset(
        static_cast<std::byte*>(::operator new(size_bytes, std::align_val_t{64}, std::nothrow)));
    if (block.data == nullptr) {
      host_->Release(size_bytes);
      throw std::bad_alloc();
    }
    block.size_bytes = size_bytes;
    scratch_bytes_ += size_bytes;
  }
  return block.data.get();
}

void HostMath::FreeBlock(ScratchBlock& block) {
  host_->Release(block.size_bytes);
  scratch_bytes_ -= block.size_bytes;
  block = {};
}

void HostMath::FreeScratch() {
  for (ScratchBlock& block : scratch_) {
    FreeBlock(block);
  }
}

HostMath::Primitive HostMath::MakePrimitive(const ProductShape& shape) {
  const dnnl::memory::desc a_desc =
      OperandDesc(shape, shape.a_batch, shape.m, shape.k, shape.transpose_a);
  const dnnl::memory::desc b_desc =
      OperandDesc(shape, shape.b_batch, shape.k, shape.n, shape.transpose_b);
  const dnnl::memory::desc bias_desc = OperandDesc(shape, 1, 1, shape.n, false);
  const dnnl::memory::desc out_desc = OperandDesc(shape, shape.batch, shape.m, shape.n, false);
  const dnnl::matmul::desc desc = shape.has_bias
                                      ? dnnl::matmul::desc(a_desc, b_desc, bias_desc, out_desc)
                                      : dnnl::matmul::desc(a_desc, b_desc, out_desc);
  const dnnl::matmul::primitive_desc planned(desc, ProductAttributes(shape.activation), engine_);
  Primitive primitive;
  primitive.matmul = dnnl::matmul(planned);
  primitive.a = dnnl::memory(a_desc, engine_, nullptr);
  primitive.b = dnnl::memory(b_desc, engine_, nullptr);
  primitive.out = dnnl::memory(out_desc, engine_, nullptr);
  if (shape.has_bias) {
    primitive.bias = dnnl::memory(bias_desc, engine_, nullptr);
  }
  primitive.scratchpad = dnnl::memory(planned.scratchpad_desc(), engine_, nullptr);
  primitive.scratchpad_bytes = planned.scratchpad_desc().get_size();
  return primitive;
}

void HostMath::EvictOldest() {
  const auto oldest = std::ranges::min_element(
      primitives_, {}, [](const auto& entry) { return entry.second->last_use; });
  primitives_.erase(oldest);
}

HostMath::Primitive& HostMath::FindPrimitive(const ProductShape& shape) {
  const auto found = primitives_.find(shape);
  if (found != primitives_.end()) {
    found->second->last_use = ++uses_;
    return *found->second;
  }
  if (primitives_.size() >= kPrimitivesMax) {
    EvictOldest();
  }
  auto primitive = std::make_unique<Primitive>(MakePrimitive(shape));
  primitive->last_use = ++uses_;
  return *primitives_.emplace(shape, std::move(primitive)).first->second;
}

void HostMath::RunProduct(const ProductShape& shape, const float* a, const float* b,
                          const float* bias, float* out) {
#ifdef _OPENMP
  omp_set_num_threads(shape.threads);
#endif
  Primitive& primitive = FindPrimitive(shape);
  // The C functions: the C++ ones build a hash map of the arguments for every call.
  dnnl_exec_arg_t args[5];
  int count = 0;
  const auto add = [&](int role, const dnnl::memory& memory, const void* data) {
    dnnl::error::wrap_c_api(
        dnnl_memory_set_data_handle_v2(memory.get(), const_cast<void*>(data), stream_.get()),
        "could not set an operand");
    args[count++] = {role, memory.get()};
  };
  add(DNNL_ARG_SRC, primitive.a, a);
  add(DNNL_ARG_WEIGHTS, primitive.b, b);
  add(DNNL_ARG_DST, primitive.out, out);
  if (shape.has_bias) {
    add(DNNL_ARG_BIAS, primitive.bias, bias);
  }
  if (primitive.scratchpad_bytes > 0) {
    add(DNNL_ARG_SCRATCHPAD, primitive.scratchpad,
        Scratch(kScratchpadSlot, primitive.scratchpad_bytes));
  }
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.matmul.get(), stream_.get(), count, args),
      "could not execute a product");
}

}  // namespace devserver
