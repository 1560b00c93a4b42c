// Element types. On the wire and in memory elements are little-endian, row-major, packed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace devserver {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

// The numbers travel (DType in proto/devserver/v1/types.proto); names are safetensors' ("F32"),
// shown as NumPy's ("f32").
enum class DType : uint8_t {
  kUnspecified = 0,
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
  kBool = 8,  // one byte, 0 or 1
};

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                       DType::kI32, DType::kI64, DType::kU8,  DType::kBool};

// Bytes of one element; 0 for kUnspecified.
constexpr size_t DTypeSize(DType dtype) {
  constexpr uint8_t kSizes[] = {0, 4, 8, 2, 2, 4, 8, 1, 1};
  return kSizes[static_cast<uint8_t>(dtype)];
}

// "f32", "bf16", "bool".
std::string_view DTypeName(DType dtype);

// Accepts "f32", "F32", "float32", "bfloat16", "int64", "uint8", "bool" and the like; nullopt for
// anything else.
std::optional<DType> ParseDType(std::string_view name);

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) {
      bits_ = static_cast<uint16_t>(bits_ | (1u << static_cast<uint8_t>(dtype)));
    }
  }
  constexpr bool Contains(DType dtype) const {
    return ((bits_ >> static_cast<uint8_t>(dtype)) & 1u) != 0;
  }
  // "f32, f64, f16"
  std::string ToString() const;

 private:
  uint16_t bits_ = 0;
};

}  // namespace devserver
