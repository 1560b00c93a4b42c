#include "client/values.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "devserver/tensor.h"
#include "server/tensor/float16.h"

namespace devserver::client {
namespace {

template <typename T>
T Load(std::span<const std::byte> packed, size_t index) {
  T value;
  std::memcpy(&value, packed.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::string FormatElement(DType dtype, std::span<const std::byte> packed, size_t index) {
  switch (dtype) {
    case DType::kI64:
      return absl::StrFormat("%d", Load<int64_t>(packed, index));
    case DType::kBool:
      return Load<uint8_t>(packed, index) == 0 ? "false" : "true";
    case DType::kF64:
      return absl::StrFormat("%.10g", Load<double>(packed, index));
    default:
      return absl::StrFormat("%.6g", ElementAsDouble(dtype, packed, index));
  }
}

void FormatAxis(const TensorSpec& spec, std::span<const std::byte> packed, int axis_max, int axis,
                size_t first, std::string* text) {
  if (axis == spec.shape.rank()) {
    *text += FormatElement(spec.dtype, packed, first);
    return;
  }
  size_t stride = 1;
  for (int i = axis + 1; i < spec.shape.rank(); ++i) {
    stride *= static_cast<size_t>(spec.shape.dim(i));
  }
  const int64_t size = spec.shape.dim(axis);
  const bool innermost = axis + 1 == spec.shape.rank();
  const std::string separator =
      innermost ? ", " : ",\n" + std::string(static_cast<size_t>(axis) + 1, ' ');
  *text += "[";
  for (int64_t i = 0; i < size; ++i) {
    if (i > 0) {
      *text += separator;
    }
    if (size > axis_max && i == axis_max / 2) {
      *text += "...";
      i = size - axis_max / 2 - 1;
      continue;
    }
    FormatAxis(spec, packed, axis_max, axis + 1, first + static_cast<size_t>(i) * stride, text);
  }
  *text += "]";
}

}  // namespace

template <typename T>
absl::Status CheckElementType(DType dtype) {
  constexpr DType kOwn = ElementOf<T>::kDType;
  const bool widens = kOwn == DType::kF32 && (dtype == DType::kF16 || dtype == DType::kBF16);
  const bool is_bool = kOwn == DType::kU8 && dtype == DType::kBool;
  if (dtype == kOwn || widens || is_bool) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("a tensor of %s can't be fetched as %s; cast(x, DType) to that first",
                      DTypeName(dtype), DTypeName(kOwn)));
}

template <typename T>
std::vector<T> Unpack(const TensorSpec& spec, std::span<const std::byte> packed) {
  std::vector<T> values(static_cast<size_t>(spec.shape.element_count()));
  if constexpr (std::is_same_v<T, float>) {
    if (spec.dtype != DType::kF32) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(ElementAsDouble(spec.dtype, packed, i));  // Exact.
      }
      return values;
    }
  }
  if (!values.empty()) {
    std::memcpy(values.data(), packed.data(), values.size() * sizeof(T));
  }
  return values;
}

double ElementAsDouble(DType dtype, std::span<const std::byte> packed, size_t index) {
  switch (dtype) {
    case DType::kF32:
      return Load<float>(packed, index);
    case DType::kF64:
      return Load<double>(packed, index);
    case DType::kF16:
      return static_cast<double>(Load<Half>(packed, index));
    case DType::kBF16:
      return static_cast<double>(Load<BFloat16>(packed, index));
    case DType::kI32:
      return Load<int32_t>(packed, index);
    case DType::kI64:
      return static_cast<double>(Load<int64_t>(packed, index));
    default:
      return Load<uint8_t>(packed, index);
  }
}

std::string FormatElements(const TensorSpec& spec, std::span<const std::byte> packed,
                           int axis_max) {
  std::string text;
  FormatAxis(spec, packed, axis_max, 0, 0, &text);
  return text;
}

template absl::Status CheckElementType<float>(DType);
template absl::Status CheckElementType<double>(DType);
template absl::Status CheckElementType<int32_t>(DType);
template absl::Status CheckElementType<int64_t>(DType);
template absl::Status CheckElementType<uint8_t>(DType);
template std::vector<float> Unpack<float>(const TensorSpec&, std::span<const std::byte>);
template std::vector<double> Unpack<double>(const TensorSpec&, std::span<const std::byte>);
template std::vector<int32_t> Unpack<int32_t>(const TensorSpec&, std::span<const std::byte>);
template std::vector<int64_t> Unpack<int64_t>(const TensorSpec&, std::span<const std::byte>);
template std::vector<uint8_t> Unpack<uint8_t>(const TensorSpec&, std::span<const std::byte>);

}  // namespace devserver::client
