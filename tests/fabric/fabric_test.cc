// Quotes: pure arithmetic over links.
#include "server/fabric/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace devserver {
namespace {

Link MakeLink(Medium medium, double latency_seconds, double bytes_per_second, bool simulated) {
  Link link;
  link.medium = medium;
  link.latency_seconds = latency_seconds;
  link.bytes_per_second = bytes_per_second;
  link.simulated = simulated;
  return link;
}

class FabricTest : public testing::Test {
 protected:
  void SetUp() override {
    fabric.AddLink("cpu:0", "gpu:0", MakeLink(Medium::kPcie, 1e-5, 1e10, true));
    fabric.AddLink("gpu:0", "cpu:0", MakeLink(Medium::kPcie, 2e-5, 1e10, true));
    fabric.AddLink("cpu:0", "gpu:1", MakeLink(Medium::kPcie, 1e-5, 5e9, true));
    fabric.AddLink("gpu:0", "gpu:2", MakeLink(Medium::kNvlink, 1e-6, 1e11, true));
    fabric.AddLink("cpu:0", "cpu:0", Link{});
    fabric.AddLink("gpu:0", "gpu:0", MakeLink(Medium::kMemory, 1e-6, 4e11, true));
    fabric.AddLink("a", "b", MakeLink(Medium::kTcp, 1e-3, 1e9, false));
  }
  Fabric fabric;
};

TEST_F(FabricTest, ADirectLinkTakesLatencyAndBytesOverBandwidth) {
  const Quote quote = fabric.QuoteCopy("cpu:0", "gpu:0", 1'000'000);
  ASSERT_EQ(quote.legs.size(), 1u);
  EXPECT_EQ(quote.legs[0].source, "cpu:0");
  EXPECT_EQ(quote.legs[0].target, "gpu:0");
  EXPECT_EQ(quote.legs[0].medium, Medium::kPcie);
  EXPECT_DOUBLE_EQ(quote.estimated.seconds, 1e-5 + 1e-4);
  EXPECT_EQ(quote.estimated.basis, Basis::kConfigured);
  EXPECT_EQ(quote.size_bytes, 1'000'000u);
  EXPECT_TRUE(quote.simulated);
}

TEST_F(FabricTest, NoBytesTakeTheLatency) {
  EXPECT_DOUBLE_EQ(fabric.QuoteCopy("cpu:0", "gpu:0", 0).estimated.seconds, 1e-5);
}

TEST_F(FabricTest, LinksAreDirected) {
  EXPECT_DOUBLE_EQ(fabric.QuoteCopy("gpu:0", "cpu:0", 0).estimated.seconds, 2e-5);
  EXPECT_EQ(fabric.QuoteCopy("gpu:1", "cpu:0", 0).estimated.basis, Basis::kUnknown);
}

TEST_F(FabricTest, WithoutADirectLinkItGoesOverTheHost) {
  const Quote quote = fabric.QuoteCopy("gpu:0", "gpu:1", 1'000'000);
  ASSERT_EQ(quote.legs.size(), 2u);
  EXPECT_EQ(quote.legs[0].target, "cpu:0");
  EXPECT_EQ(quote.legs[1].source, "cpu:0");
  EXPECT_DOUBLE_EQ(quote.legs[0].estimated.seconds, 2e-5 + 1e-4);
  EXPECT_DOUBLE_EQ(quote.legs[1].estimated.seconds, 1e-5 + 2e-4);
  EXPECT_DOUBLE_EQ(quote.estimated.seconds, 3e-5 + 3e-4);
}

TEST_F(FabricTest, ADirectLinkIsPreferred) {
  EXPECT_EQ(fabric.QuoteCopy("gpu:0", "gpu:2", 1).legs[0].medium, Medium::kNvlink);
}

TEST_F(FabricTest, ACopyWithinADeviceUsesItsOwnLink) {
  const Quote quote = fabric.QuoteCopy("gpu:0", "gpu:0", 400'000);
  ASSERT_EQ(quote.legs.size(), 1u);
  EXPECT_EQ(quote.legs[0].medium, Medium::kMemory);
  EXPECT_DOUBLE_EQ(quote.estimated.seconds, 1e-6 + 1e-6);
}

TEST_F(FabricTest, UnknownIsAValueAndNeverZero) {
  for (const auto& [source, target] :
       {std::pair{"cpu:0", "cpu:0"}, std::pair{"gpu:7", "gpu:8"}, std::pair{"gpu:1", "gpu:1"}}) {
    const Quote quote = fabric.QuoteCopy(source, target, 1000);
    EXPECT_EQ(quote.legs.size(), 1u);
    EXPECT_EQ(quote.estimated.basis, Basis::kUnknown) << source;
    EXPECT_FALSE(quote.simulated);
  }
}

TEST_F(FabricTest, OneUnknownLegMakesTheSumUnknown) {
  fabric.AddLink("gpu:3", "cpu:0", MakeLink(Medium::kPcie, 1e-5, 0, true));
  const Quote quote = fabric.QuoteCopy("gpu:3", "gpu:0", 1000);
  ASSERT_EQ(quote.legs.size(), 2u);
  EXPECT_EQ(quote.legs[0].estimated.basis, Basis::kUnknown);
  EXPECT_EQ(quote.legs[1].estimated.basis, Basis::kConfigured);
  EXPECT_EQ(quote.estimated.basis, Basis::kUnknown);
}

TEST_F(FabricTest, ARealLinkIsNotSimulated) {
  EXPECT_FALSE(fabric.QuoteCopy("a", "b", 1).simulated);
}

TEST_F(FabricTest, HugeCopiesDoNotOverflow) {
  EXPECT_NEAR(fabric.QuoteCopy("cpu:0", "gpu:0", ~uint64_t{0}).estimated.seconds, 1.8446744e9, 1e3);
}

}  // namespace
}  // namespace devserver
