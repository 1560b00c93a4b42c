// Random tensors: the same numbers on every device for one seed, bit for bit.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011), from the authors' library Random123. The key is the seed (low word first), the
// counter is element / 4 (f64: element / 2) in its first two words, so any element can be made
// alone. Uniform: u = (x >> 8)·2^-24 from one word; f64: the upper 53 bits of two words, times
// 2^-53. The tensor holds low + (high − low)·u, computed in double and rounded once, so rounding
// may give `high` itself. Normal: z = Φ⁻¹(p) by algorithm AS 241 PPND16 (Wichura, Applied
// Statistics 37, 1988, about 16 digits), where p = (x + ½)·2^-32; f64: (the upper 52 bits of two
// words + ½)·2^-52. Then mean + stddev·z as above. Nothing of a math library is used: only exact
// conversions, integer operations and IEEE + − · / √ with no contraction into fused multiply-adds
// (built with -ffp-contract=off; on CUDA the _rn intrinsics).
#pragma once

#include <cmath>
#include <cstdint>

#include "Random123/philox.h"
#include "server/tensor/float16.h"
#include "server/tensor/host_device.h"

namespace devserver {

struct RandomBlock {
  uint32_t words[4];
};

DEVSERVER_HOST_DEVICE inline RandomBlock PhiloxBlock(uint64_t seed, uint64_t counter) {
  const r123::Philox4x32 philox;
  const r123::Philox4x32::ctr_type count = {
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  const r123::Philox4x32::ctr_type block = philox(count, key);
  return {{block[0], block[1], block[2], block[3]}};
}

// Two words as one number, for f64: element parity picks the pair, the first word is the upper
// half.
DEVSERVER_HOST_DEVICE inline uint64_t WordPair(const RandomBlock& block, int pair) {
  return (static_cast<uint64_t>(block.words[2 * pair]) << 32) | block.words[2 * pair + 1];
}

// IEEE operations that are never fused.
#ifdef __CUDA_ARCH__
DEVSERVER_HOST_DEVICE inline double ExactAdd(double a, double b) { return __dadd_rn(a, b); }
DEVSERVER_HOST_DEVICE inline double ExactMultiply(double a, double b) { return __dmul_rn(a, b); }
DEVSERVER_HOST_DEVICE inline double ExactDivide(double a, double b) { return __ddiv_rn(a, b); }
DEVSERVER_HOST_DEVICE inline double ExactSqrt(double a) { return __dsqrt_rn(a); }
#else
inline double ExactAdd(double a, double b) { return a + b; }
inline double ExactMultiply(double a, double b) { return a * b; }
inline double ExactDivide(double a, double b) { return a / b; }
inline double ExactSqrt(double a) { return std::sqrt(a); }
#endif

// [0, 1) from one word, and from two.
DEVSERVER_HOST_DEVICE inline double UnitUniform24(uint32_t word) {
  return static_cast<double>(word >> 8) * 0x1p-24;
}
DEVSERVER_HOST_DEVICE inline double UnitUniform53(uint64_t words) {
  return static_cast<double>(words >> 11) * 0x1p-53;
}
// a + b·x as two rounded operations.
DEVSERVER_HOST_DEVICE inline double ScaleAndShift(double shift, double scale, double x) {
  return ExactAdd(shift, ExactMultiply(scale, x));
}

// ln x of a positive normal x; error below 1 ulp. The method of fdlibm's e_log.c (Sun Microsystems,
// 1993).
DEVSERVER_HOST_DEVICE inline double NaturalLog(double x) {
  const uint64_t bits = BitsOf(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  uint64_t mantissa = bits & 0xfffffffffffffull;
  // Bring x / 2^exponent into [√½, √2), so that f below is small.
  const bool upper = mantissa >= 0x6a09e667f3bcdull;
  exponent += upper ? 1 : 0;
  mantissa |= (upper ? 1022ull : 1023ull) << 52;
  const double f = ExactAdd(DoubleFromBits(mantissa), -1.0);
  const double s = ExactDivide(f, ExactAdd(2.0, f));
  const double z = ExactMultiply(s, s);
  constexpr double kLg[] = {1.479819860511658591e-01, 1.531383769920937332e-01,
                            1.818357216161805012e-01, 2.222219843214978396e-01,
                            2.857142874366239149e-01, 3.999999999940941908e-01,
                            6.666666666666735130e-01};
  double series = kLg[0];
  for (int i = 1; i < 7; ++i) {
    series = ScaleAndShift(kLg[i], series, z);
  }
  series = ExactMultiply(series, z);
  const double half_square = ExactMultiply(ExactMultiply(0.5, f), f);
  const double k = static_cast<double>(exponent);
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const double tail =
      ExactAdd(ExactMultiply(s, ExactAdd(half_square, series)), ExactMultiply(k, kLn2Low));
  return ExactAdd(ExactMultiply(k, kLn2High), -ExactAdd(ExactAdd(half_square, -tail), -f));
}

// The quotient of two polynomials of degree 7, coefficients from the highest down.
DEVSERVER_HOST_DEVICE inline double Rational7(const double (&upper)[8], const double (&lower)[8],
                                              double x) {
  double numerator = upper[0];
  double denominator = lower[0];
  for (int i = 1; i < 8; ++i) {
    numerator = ScaleAndShift(upper[i], numerator, x);
    denominator = ScaleAndShift(lower[i], denominator, x);
  }
  return ExactDivide(numerator, denominator);
}

// Φ⁻¹(p), the standard normal's quantile, for 0 < p < 1: PPND16.
DEVSERVER_HOST_DEVICE inline double NormalQuantile(double p) {
  constexpr double kA[] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                           45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                           133.14166789178437745, 3.387132872796366608};
  constexpr double kB[] = {
      5226.495278852854561,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
      5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  constexpr double kC[] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                           0.24178072517745061177,   1.27045825245236838258,
                           3.64784832476320460504,   5.7694972214606914055,
                           4.6303378461565452959,    1.42343711074968357734};
  constexpr double kD[] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                           0.0151986665636164571966,  0.14810397642748007459,
                           0.68976733498510000455,    1.6763848301838038494,
                           2.05319162663775882187,    1.0};
  constexpr double kE[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                           0.0012426609473880784386,  0.026532189526576123093,
                           0.29656057182850489123,    1.7848265399172913358,
                           5.4637849111641143699,     6.6579046435011037772};
  constexpr double kF[] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                           1.8463183175100546818e-5,   7.868691311456132591e-4,
                           0.0148753612908506148525,   0.13692988092273580531,
                           0.59983220655588793769,     1.0};
  const double q = ExactAdd(p, -0.5);
  if (std::fabs(q) <= 0.425) {
    const double r = ExactAdd(0.180625, -ExactMultiply(q, q));
    return ExactMultiply(q, Rational7(kA, kB, r));
  }
  const double tail = q < 0 ? p : ExactAdd(1.0, -p);
  const double r = ExactSqrt(-NaturalLog(tail));
  const double z =
      r <= 5.0 ? Rational7(kC, kD, ExactAdd(r, -1.6)) : Rational7(kE, kF, ExactAdd(r, -5.0));
  return q < 0 ? -z : z;
}

// Standard normals from one word, and from two.
DEVSERVER_HOST_DEVICE inline double UnitNormal32(uint32_t word) {
  return NormalQuantile(ExactMultiply(ExactAdd(static_cast<double>(word), 0.5), 0x1p-32));
}
DEVSERVER_HOST_DEVICE inline double UnitNormal52(uint64_t words) {
  return NormalQuantile(ExactMultiply(ExactAdd(static_cast<double>(words >> 12), 0.5), 0x1p-52));
}

}  // namespace devserver
