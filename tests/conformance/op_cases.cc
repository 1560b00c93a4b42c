#include "tests/conformance/op_cases.h"

#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_format.h"

namespace devserver::conformance {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Empty, scalar, one, odd, prime and longer than a block of 512, and not a multiple of any vector.
const Shapes kShapes = {{}, {0}, {1}, {3, 0, 2}, {7}, {16}, {33, 5}, {2, 3, 5, 7}, {1031}};

OpAttributes Axes(IntList axes, bool keep_dims = false) {
  OpAttributes attributes;
  attributes.axes = std::move(axes);
  attributes.keep_dims = keep_dims;
  return attributes;
}
OpAttributes ShapeIs(const std::vector<int64_t>& shape) {
  OpAttributes attributes;
  attributes.shape.assign(shape.begin(), shape.end());
  return attributes;
}

std::vector<OpCase> Sources(OpCode code) {
  std::vector<OpCase> cases;
  for (const auto& shape : kShapes) {
    OpAttributes attributes = ShapeIs(shape);
    if (code == OpCode::kFull) {
      for (const double value : {0.0, 1.0, -1.5, 300.7, 65519.0, 65520.0, 1e300, -1e300,
                                 1.0 + 0x1p-11, 1.0 + 0x1p-8, kInfinity, -kInfinity, kNaN}) {
        attributes.value = value;
        cases.push_back({code, {}, attributes});
      }
    } else if (code == OpCode::kArange) {
      cases.push_back({code, {}, attributes});
      attributes.start = -3.25;
      attributes.step = 0.1;
      cases.push_back({code, {}, attributes});
      attributes.step = -1e18;
      cases.push_back({code, {}, attributes});
    } else if (code == OpCode::kEye) {
      if (shape.size() >= 2) {
        cases.push_back({code, {}, attributes});
      }
    } else {
      for (const uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
        attributes.seed = seed;
        attributes.low = attributes.mean = seed == 0 ? 0 : -2.5;
        attributes.high = seed == 0 ? 1 : 7;
        attributes.stddev = seed == 0 ? 1 : 3;
        cases.push_back({code, {}, attributes});
      }
    }
  }
  if (code == OpCode::kEye) {
    for (const int64_t size : {0, 1, 17}) {
      cases.push_back({code, {}, ShapeIs({size, size})});
    }
  }
  return cases;
}

std::vector<OpCase> MatMuls() {
  struct Product {
    int64_t m, n, k;
  };
  // With nothing in it, with one, odd, just past 32 and 64, and with a long sum.
  constexpr Product kProducts[] = {{0, 5, 3},    {3, 0, 5},   {3, 5, 0},   {1, 1, 1},
                                   {2, 5, 3},    {7, 11, 13}, {33, 9, 17}, {5, 65, 33},
                                   {1, 1, 1031}, {3, 2, 4099}};
  std::vector<OpCase> cases;
  for (int transposed = 0; transposed < 4; ++transposed) {
    OpAttributes attributes;
    attributes.transpose_a = (transposed & 1) != 0;
    attributes.transpose_b = (transposed & 2) != 0;
    // The last two sizes as they are stored.
    const auto stored = [](std::vector<int64_t> batch, int64_t rows, int64_t columns,
                           bool swapped) {
      batch.push_back(swapped ? columns : rows);
      batch.push_back(swapped ? rows : columns);
      return batch;
    };
    const auto add = [&](const std::vector<int64_t>& a, const std::vector<int64_t>& b, Product p) {
      cases.push_back({OpCode::kMatMul,
                       {stored(a, p.m, p.k, attributes.transpose_a),
                        stored(b, p.k, p.n, attributes.transpose_b)},
                       attributes});
    };
    for (const Product& product : kProducts) {
      add({}, {}, product);
    }
    add({2}, {2}, {3, 5, 4});           // one stride for both
    add({4, 2}, {}, {3, 5, 4});         // b for all
    add({}, {3}, {2, 5, 4});            // a for all
    add({2, 1}, {1, 3}, {3, 2, 5});     // neither is one stride
    add({2, 3, 1}, {3, 2}, {2, 3, 4});  // nor here
    add({0}, {1}, {2, 3, 4});           // no matrices at all
    add({3}, {3}, {2, 2, 0});           // matrices of nothing
  }
  return cases;
}

std::vector<OpCase> Denses() {
  std::vector<OpCase> cases;
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                      Activation::kTanh, Activation::kSigmoid}) {
    OpAttributes attributes;
    attributes.activation = activation;
    const auto add = [&](std::vector<int64_t> x, int64_t n) {
      const int64_t k = x.back();
      cases.push_back({OpCode::kDense, {x, {k, n}}, attributes});
      cases.push_back({OpCode::kDense, {x, {k, n}, {n}}, attributes});
    };
    add({7}, 5);
    add({1, 1}, 1);
    add({33, 17}, 13);
    add({2, 3, 9}, 4);
    add({3, 0}, 4);  // no inputs: the bias alone
    add({0, 3}, 4);
    add({3, 4}, 0);
    add({2, 1031}, 3);
  }
  return cases;
}

std::vector<OpCase> Binaries(OpCode code) {
  const std::vector<Shapes> pairs = {{{}, {}},
                                     {{0}, {0}},
                                     {{1}, {0}},
                                     {{3, 0, 2}, {1, 2}},
                                     {{16}, {16}},
                                     {{1031}, {1031}},
                                     {{1031}, {}},
                                     {{}, {1031}},
                                     {{5, 7}, {7}},
                                     {{7}, {5, 7}},
                                     {{5, 7}, {5, 1}},
                                     {{5, 1}, {1, 7}},
                                     {{3, 600}, {600}},
                                     {{3, 600}, {3, 1}},
                                     {{2, 1, 3}, {4, 1}},
                                     {{2, 1, 3, 1, 2, 1, 3, 1}, {1, 2, 1, 3, 1, 2, 1, 3}}};
  std::vector<OpCase> cases;
  for (const Shapes& pair : pairs) {
    cases.push_back({code, pair, {}});
    cases.push_back({code, pair, {}, Fill::kSpecial});
  }
  cases.push_back({code, {{97, 89}, {97, 89}}, {}, Fill::kWide});
  return cases;
}

std::vector<OpCase> Unaries(OpCode code) {
  std::vector<OpCase> cases;
  for (const auto& shape : kShapes) {
    cases.push_back({code, {shape}, {}, code == OpCode::kLog ? Fill::kPositive : Fill::kOrdinary});
    cases.push_back({code, {shape}, {}, Fill::kSpecial});
  }
  cases.push_back({code, {{97, 89}}, {}, Fill::kWide});
  return cases;
}

std::vector<OpCase> Casts() {
  std::vector<OpCase> cases;
  for (const DType target : kAllDTypes) {
    OpAttributes attributes;
    attributes.dtype = target;
    for (const auto& shape : Shapes{{}, {0}, {3, 0, 2}, {17}, {1031}}) {
      cases.push_back({OpCode::kCast, {shape}, attributes, Fill::kSpecial});
    }
    cases.push_back({OpCode::kCast, {{97, 89}}, attributes, Fill::kWide});
  }
  return cases;
}

std::vector<OpCase> Softmaxes() {
  std::vector<OpCase> cases;
  const auto add = [&](std::vector<int64_t> shape, IntList axes) {
    for (const Fill fill : {Fill::kOrdinary, Fill::kSpecial, Fill::kWide}) {
      cases.push_back({OpCode::kSoftmax, {shape}, Axes(axes), fill});
    }
  };
  add({7}, {});
  add({0}, {0});
  add({1}, {-1});
  add({5, 7}, {});
  add({5, 7}, {0});
  add({2, 3, 5}, {1});
  add({2, 3, 5}, {-3});
  add({521}, {0});
  add({3, 521}, {-1});
  add({3, 521}, {0});
  add({521, 3}, {0});
  add({3, 0, 2}, {1});
  add({3, 0, 2}, {0});
  return cases;
}

std::vector<OpCase> Reductions(OpCode code) {
  const bool needs_elements = code == OpCode::kMax || code == OpCode::kArgmax;
  std::vector<OpCase> cases;
  const auto add = [&](std::vector<int64_t> shape, IntList axes) {
    for (const bool keep_dims : {false, true}) {
      cases.push_back({code, {shape}, Axes(axes, keep_dims)});
      cases.push_back({code, {shape}, Axes(axes, keep_dims), Fill::kSpecial});
    }
  };
  add({}, {});
  add({1}, {});
  add({7}, {0});
  add({1031}, {});
  add({3, 0, 2}, {0});
  add({1, 5, 1}, {0});
  add({1, 5, 1}, {2});
  for (const int64_t axis : {0, 1, 2, 3, -1}) {
    add({2, 3, 5, 7}, {axis});
  }
  add({600, 3}, {0});
  add({3, 600}, {1});
  add({3, 130}, {0});
  add({2, 3, 5, 7}, {});
  cases.push_back({code, {{97, 89}}, Axes({1}), Fill::kWide});
  if (!needs_elements) {
    add({0}, {});
    add({3, 0, 2}, {1});
  }
  if (code != OpCode::kArgmax) {
    for (const IntList& axes : {IntList{0, 2}, IntList{1, 3}, IntList{0, 3}, IntList{2, 1},
                                IntList{-1, -2, 0}, IntList{0, 1, 2, 3}}) {
      add({2, 3, 5, 7}, axes);
    }
  }
  return cases;
}

std::vector<OpCase> Transposes() {
  std::vector<OpCase> cases;
  const auto add = [&](std::vector<int64_t> shape, IntList axes) {
    cases.push_back({OpCode::kTranspose, {shape}, Axes(axes), Fill::kSpecial});
  };
  for (const auto& shape : kShapes) {
    add(shape, {});
  }
  add({33, 65}, {1, 0});
  add({2, 3, 5}, {0, 2, 1});
  add({2, 3, 5}, {1, 0, 2});
  add({2, 3, 5}, {1, 2, 0});
  add({2, 3, 5}, {-1, 0, 1});
  add({2, 3, 5, 7}, {3, 1, 0, 2});
  add({2, 3, 5, 7}, {0, 1, 2, 3});
  add({2, 1, 3, 1, 2, 1, 3, 2}, {7, 3, 0, 6, 2, 5, 1, 4});
  return cases;
}

std::vector<OpCase> Reshapes() {
  std::vector<OpCase> cases;
  const auto add = [&](std::vector<int64_t> from, const std::vector<int64_t>& to) {
    cases.push_back({OpCode::kReshape, {from}, ShapeIs(to), Fill::kSpecial});
  };
  add({}, {});
  add({1}, {});
  add({}, {1, 1});
  add({6}, {2, 3});
  add({2, 3, 4}, {-1, 4});
  add({3, 0, 2}, {0, 7});
  add({0, 4}, {2, -1});
  return cases;
}

std::vector<OpCase> Slices() {
  std::vector<OpCase> cases;
  const auto add = [&](std::vector<int64_t> shape, IntList starts, IntList stops) {
    OpAttributes attributes;
    attributes.starts = std::move(starts);
    attributes.stops = std::move(stops);
    cases.push_back({OpCode::kSlice, {shape}, attributes, Fill::kSpecial});
  };
  add({}, {}, {});
  add({1031}, {0}, {1031});
  add({1031}, {17}, {-13});
  add({10}, {7}, {3});
  add({10}, {kMin}, {kMax});
  add({5, 7}, {1, 2}, {4, 6});
  add({5, 7}, {1, 0}, {4, 7});
  add({5, 7}, {0, 3}, {5, 4});
  add({3, 0, 2}, {1, 0, 0}, {3, 5, 1});
  add({2, 3, 5, 7}, {0, 1, 1, 2}, {2, 3, 4, -1});
  return cases;
}

std::vector<OpCase> Concats() {
  std::vector<OpCase> cases;
  const auto add = [&](const Shapes& shapes, IntList axes) {
    cases.push_back({OpCode::kConcat, shapes, Axes(axes), Fill::kSpecial});
  };
  add({{7}}, {});
  add({{3}, {0}, {5}}, {0});
  add({{0}, {0}}, {});
  add({{2, 3}, {4, 3}}, {0});
  add({{2, 3}, {2, 1}, {2, 5}}, {-1});
  add({{2, 3, 2}, {2, 0, 2}, {2, 5, 2}}, {1});
  add({{3, 0, 2}, {4, 0, 2}}, {0});
  add(Shapes(300, {1}), {0});
  return cases;
}

double SpecialValue(DType dtype, uint64_t choice) {
  if (dtype == DType::kI32 || dtype == DType::kI64) {
    const bool wide = dtype == DType::kI64;
    const double low = wide ? -0x1p63 : -0x1p31;
    const double high = wide ? 0x1p63 - 1024 : 0x1p31 - 1;
    const double values[] = {0, -1, 1, low, high, 255, 256, -128};
    return values[choice % std::size(values)];
  }
  if (dtype == DType::kU8 || dtype == DType::kBool) {
    const double values[] = {0, 1, dtype == DType::kU8 ? 255.0 : 1.0, 0};
    return values[choice % std::size(values)];
  }
  const double largest = dtype == DType::kF16   ? 65504
                         : dtype == DType::kF64 ? std::numeric_limits<double>::max()
                                                : 0x1.fep127;
  const double values[] = {kNaN,         kInfinity, -kInfinity, 0.0,    -0.0,  largest, -largest,
                           0.5,          1.5,       2.5,        -0.99,  255.5, 256,     -1e4,
                           2147483648.0, 100,       -100,       -128.5, 3e4};
  return values[choice % std::size(values)];
}

double IntegerValue(DType dtype, uint64_t random) {
  switch (dtype) {
    case DType::kI32:
      return static_cast<int32_t>(random);
    case DType::kI64:
      // Any magnitude; Set takes a double, so the lowest bits of the largest are 0.
      return static_cast<double>(static_cast<int64_t>(random) >> (random % 64));
    case DType::kBool:
      return static_cast<double>(random & 1);
    default:
      return static_cast<uint8_t>(random);
  }
}

double WideValue(DType dtype, std::mt19937_64& random) {
  // Short of where subnormal numbers begin, which devices may take for zero.
  const int exponent_max = dtype == DType::kF64 ? 1000 : dtype == DType::kF16 ? 14 : 125;
  std::uniform_int_distribution<int> exponent(-exponent_max, exponent_max);
  std::uniform_real_distribution<double> mantissa(1, 2);
  const double value = std::ldexp(mantissa(random), exponent(random));
  return (random() & 1) != 0 ? value : -value;
}

}  // namespace

std::string OpCase::ToString() const {
  std::string text = absl::StrFormat("%s", GetOp(code).name);
  for (const auto& shape : shapes) {
    text += " " + DimsToString(shape);
    if (text.size() > 200) {
      break;
    }
  }
  text += absl::StrFormat(
      " axes %s keep %d shape %s starts %s stops %s transpose %d%d activation %d dtype %s value %g "
      "seed %d fill %d",
      DimsToString(attributes.axes), attributes.keep_dims, DimsToString(attributes.shape),
      DimsToString(attributes.starts), DimsToString(attributes.stops), attributes.transpose_a,
      attributes.transpose_b, static_cast<int>(attributes.activation), DTypeName(attributes.dtype),
      attributes.value, attributes.seed, static_cast<int>(fill));
  return text;
}

std::vector<OpCase> CasesOf(OpCode code, DType /*dtype*/) {
  switch (code) {
    case OpCode::kMatMul:
      return MatMuls();
    case OpCode::kDense:
      return Denses();
    case OpCode::kCast:
      return Casts();
    case OpCode::kSoftmax:
      return Softmaxes();
    case OpCode::kTranspose:
      return Transposes();
    case OpCode::kReshape:
      return Reshapes();
    case OpCode::kSlice:
      return Slices();
    case OpCode::kConcat:
      return Concats();
    default:
      break;
  }
  if (code <= OpCode::kNormal) {
    return Sources(code);
  }
  if (code <= OpCode::kEqual) {
    return Binaries(code);
  }
  return code < OpCode::kCast ? Unaries(code) : Reductions(code);
}

std::vector<HostTensor> MakeInputs(const OpCase& test, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 1.5);
  std::vector<HostTensor> inputs;
  for (const auto& shape : test.shapes) {
    HostTensor tensor({dtype, *Shape::Create(shape)});
    for (int64_t i = 0; i < tensor.count(); ++i) {
      double value = IsFloat(dtype) ? normal(random) : IntegerValue(dtype, random());
      if (test.fill == Fill::kPositive) {
        value = std::fabs(value) + 1e-3;
      } else if (test.fill == Fill::kWide && IsFloat(dtype)) {
        value = WideValue(dtype, random);
      } else if (test.fill == Fill::kSpecial && random() % 4 == 0) {
        value = SpecialValue(dtype, random());
      }
      tensor.Set(i, value);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

OpAttributes MakeAttributes(const OpCase& test, DType dtype) {
  OpAttributes attributes = test.attributes;
  if (test.code <= OpCode::kNormal) {
    attributes.dtype = dtype;
  }
  return attributes;
}

}  // namespace devserver::conformance
