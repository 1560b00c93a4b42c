#include "server/tensor/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace devserver {
namespace {

TEST(Random, PhiloxGivesThePublishedBlocks) {
  // Random123's own known answers (tests/kat_vectors, "philox4x32 10"), those that a 64-bit counter
  // can reach.
  const RandomBlock zeros = PhiloxBlock(0, 0);
  EXPECT_EQ(zeros.words[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.words[1], 0xe169c58du);
  EXPECT_EQ(zeros.words[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.words[3], 0x9b00dbd8u);
}

// Philox4x32-10 written from the paper's figure: ten rounds of two multiplications, the key bumped
// in between.
RandomBlock Reference(uint64_t seed, uint64_t counter) {
  uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy_n(next, 4, x);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return {{x[0], x[1], x[2], x[3]}};
}

TEST(Random, SeedAndCounterGoWhereTheHeaderSays) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{0xdeadbeef12345678}, ~uint64_t{0}}) {
    for (const uint64_t counter : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
      const RandomBlock block = PhiloxBlock(seed, counter);
      const RandomBlock expected = Reference(seed, counter);
      EXPECT_TRUE(std::equal(block.words, block.words + 4, expected.words)) << seed << counter;
    }
  }
}

TEST(Random, UnitUniformStaysBelowOne) {
  EXPECT_EQ(UnitUniform24(0), 0.0);
  EXPECT_EQ(UnitUniform24(~0u), 1.0 - 0x1p-24);
  EXPECT_EQ(UnitUniform53(0), 0.0);
  EXPECT_EQ(UnitUniform53(~uint64_t{0}), 1.0 - 0x1p-53);
}

TEST(Random, NaturalLogIsTheLibrarysToOneUlp) {
  constexpr uint64_t kSeed = 7;
  for (uint64_t i = 0; i < 100000; ++i) {
    const RandomBlock block = PhiloxBlock(kSeed, i);
    const double x = std::ldexp(1 + UnitUniform53(WordPair(block, 0)),
                                static_cast<int>(block.words[2] % 140) - 100);
    const double expected = std::log(x);
    const double ulp = std::nextafter(std::fabs(expected), 1e300) - std::fabs(expected);
    ASSERT_LE(std::fabs(NaturalLog(x) - expected), 1.01 * ulp) << x;
  }
  EXPECT_EQ(NaturalLog(1.0), 0.0);
}

// Φ(z) by the library's complementary error function.
double NormalDistribution(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

TEST(Random, NormalQuantileInvertsTheDistribution) {
  // Wichura's own check values for PPND16.
  EXPECT_NEAR(NormalQuantile(0.25), -0.6744897501960817, 1e-15);
  EXPECT_NEAR(NormalQuantile(0.001), -3.090232306167814, 1e-14);
  EXPECT_NEAR(NormalQuantile(1e-20), -9.262340089798408, 1e-14);
  EXPECT_EQ(NormalQuantile(0.5), 0.0);
  for (int i = 1; i < 100000; ++i) {
    const double p = i / 100000.0;
    ASSERT_NEAR(NormalDistribution(NormalQuantile(p)), p, 4e-15) << p;
  }
}

TEST(Random, NormalsOfTheExtremeWordsAreFiniteAndSymmetric) {
  EXPECT_TRUE(std::isfinite(UnitNormal32(0)));
  EXPECT_EQ(UnitNormal32(0), -UnitNormal32(~0u));
  EXPECT_TRUE(std::isfinite(UnitNormal52(0)));
  EXPECT_EQ(UnitNormal52(0), -UnitNormal52(~uint64_t{0}));
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double skewness = 0;
  double kurtosis = 0;
  double neighbour_correlation = 0;
};

Moments MomentsOf(int64_t n, const std::function<double(int64_t)>& element) {
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) {
    mean += element(i) / static_cast<double>(n);
  }
  double sums[5] = {};
  double products = 0;
  double previous = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = element(i) - mean;
    for (int power = 2; power <= 4; ++power) {
      sums[power] += std::pow(d, power) / static_cast<double>(n);
    }
    products += d * previous / static_cast<double>(n);
    previous = d;
  }
  const double variance = sums[2];
  return {mean, variance, sums[3] / std::pow(variance, 1.5), sums[4] / (variance * variance),
          products / variance};
}

constexpr int64_t kSamples =
    400000;  // Standard errors of about 1/600; the bounds below are six of them.
constexpr uint64_t kSeed = 42;

TEST(Random, UniformsHaveTheMomentsOfTheUniformDistribution) {
  const Moments moments = MomentsOf(kSamples, [](int64_t i) {
    return UnitUniform24(PhiloxBlock(kSeed, static_cast<uint64_t>(i / 4)).words[i % 4]);
  });
  EXPECT_NEAR(moments.mean, 0.5, 0.003);
  EXPECT_NEAR(moments.variance, 1.0 / 12, 0.001);
  EXPECT_NEAR(moments.skewness, 0, 0.02);
  EXPECT_NEAR(moments.kurtosis, 1.8, 0.02);
  EXPECT_NEAR(moments.neighbour_correlation, 0, 0.01);
}

TEST(Random, NormalsHaveTheMomentsOfTheNormalDistribution) {
  const Moments narrow = MomentsOf(kSamples, [](int64_t i) {
    return UnitNormal32(PhiloxBlock(kSeed, static_cast<uint64_t>(i / 4)).words[i % 4]);
  });
  const Moments wide = MomentsOf(kSamples, [](int64_t i) {
    return UnitNormal52(
        WordPair(PhiloxBlock(kSeed, static_cast<uint64_t>(i / 2)), static_cast<int>(i % 2)));
  });
  for (const Moments& moments : {narrow, wide}) {
    EXPECT_NEAR(moments.mean, 0, 0.01);
    EXPECT_NEAR(moments.variance, 1, 0.014);
    EXPECT_NEAR(moments.skewness, 0, 0.024);
    EXPECT_NEAR(moments.kurtosis, 3, 0.05);
    EXPECT_NEAR(moments.neighbour_correlation, 0, 0.01);
  }
}

}  // namespace
}  // namespace devserver
