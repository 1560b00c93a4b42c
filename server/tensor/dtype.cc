#include "server/tensor/dtype.h"

#include <utility>

#include "absl/strings/ascii.h"

namespace devserver {

std::string_view DTypeName(DType dtype) {
  constexpr std::string_view kNames[] = {"unspecified", "f32", "f64", "f16", "bf16",
                                         "i32",         "i64", "u8",  "bool"};
  return kNames[static_cast<uint8_t>(dtype)];
}

std::optional<DType> ParseDType(std::string_view name) {
  std::string lower(name);
  absl::AsciiStrToLower(&lower);
  for (const DType dtype : kAllDTypes) {
    if (lower == DTypeName(dtype)) {
      return dtype;
    }
  }
  constexpr std::pair<std::string_view, DType> kNumPyNames[] = {
      {"float32", DType::kF32},   {"float", DType::kF32},   {"float64", DType::kF64},
      {"double", DType::kF64},    {"float16", DType::kF16}, {"half", DType::kF16},
      {"bfloat16", DType::kBF16}, {"int32", DType::kI32},   {"int64", DType::kI64},
      {"uint8", DType::kU8},      {"bool_", DType::kBool}};
  for (const auto& [other, dtype] : kNumPyNames) {
    if (lower == other) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::string DTypeSet::ToString() const {
  std::string text;
  for (const DType dtype : kAllDTypes) {
    if (Contains(dtype)) {
      text += text.empty() ? "" : ", ";
      text += DTypeName(dtype);
    }
  }
  return text;
}

}  // namespace devserver
