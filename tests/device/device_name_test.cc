#include "server/device/device_name.h"

#include <gtest/gtest.h>

#include <utility>

namespace devserver {
namespace {

using Spelling = std::pair<const char*, const char*>;

class AcceptedNameTest : public testing::TestWithParam<Spelling> {};

TEST_P(AcceptedNameTest, BecomesCanonical) {
  const auto name = CanonicalDeviceName(GetParam().first);
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(*name, GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Names, AcceptedNameTest,
                         testing::Values(Spelling("", "cpu:0"), Spelling("cpu", "cpu:0"),
                                         Spelling("CPU", "cpu:0"), Spelling("cpu:0", "cpu:0"),
                                         Spelling("cpu:3", "cpu:3"), Spelling("gpu", "gpu:0"),
                                         Spelling("gpu:1", "gpu:1"), Spelling("GPU:1", "gpu:1"),
                                         Spelling("cuda", "gpu:0"), Spelling("cuda:12", "gpu:12"),
                                         Spelling("gpu:007", "gpu:7"),
                                         Spelling("gpu:9999", "gpu:9999")));

class RefusedNameTest : public testing::TestWithParam<const char*> {};

TEST_P(RefusedNameTest, IsToldTheAcceptedForms) {
  const auto name = CanonicalDeviceName(GetParam());
  ASSERT_EQ(name.status().code(), absl::StatusCode::kInvalidArgument) << name.status();
  const std::string message(name.status().message());
  EXPECT_NE(message.find("cpu:0 or gpu:N"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Names, RefusedNameTest,
                         testing::Values("tpu:0", "gpu:", ":", ":0", "gpu:-1", "gpu:+1", "gpu: 1",
                                         "gpu:1 ", " gpu:1", "gpu:1x", "gpu1", "gpu:12345",
                                         "gpu:99999999999999999999", "gpu:1:2", "cpu\n:0"));

TEST(DeviceName, AnotherServersDeviceIsNotFoundHere) {
  const auto name = CanonicalDeviceName("b/gpu:0");
  ASSERT_EQ(name.status().code(), absl::StatusCode::kNotFound);
  const std::string message(name.status().message());
  EXPECT_NE(message.find("server \"b\""), std::string::npos) << message;
}

TEST(DeviceName, HostileNamesAreShownShortAndPrintable) {
  const std::string message(CanonicalDeviceName(std::string(1 << 20, '\x01')).status().message());
  EXPECT_LT(message.size(), 300u);
  EXPECT_EQ(message.find('\x01'), std::string::npos);
}

}  // namespace
}  // namespace devserver
