#include "server/base/error_details.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace devserver {
namespace {

using testing::HasSubstr;

ErrorDetails Everything() {
  ErrorDetails details;
  details.reason = ErrorReason::kDeviceMismatch;
  details.origin_tensor = std::numeric_limits<uint64_t>::max();
  details.command_number = 2;
  details.device = "gpu:0";
  details.asked = 3;
  details.used = 4;
  details.limit = 5;
  details.cure_source = 6;
  details.cure_device = "gpu:1";
  details.cure_bytes = 7;
  details.cure_seconds = 0.1;
  return details;
}

void ExpectEqual(const ErrorDetails& a, const ErrorDetails& b) {
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.origin_tensor, b.origin_tensor);
  EXPECT_EQ(a.command_number, b.command_number);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.asked, b.asked);
  EXPECT_EQ(a.used, b.used);
  EXPECT_EQ(a.limit, b.limit);
  EXPECT_EQ(a.cure_source, b.cure_source);
  EXPECT_EQ(a.cure_device, b.cure_device);
  EXPECT_EQ(a.cure_bytes, b.cure_bytes);
  EXPECT_EQ(a.cure_seconds, b.cure_seconds);
}

TEST(ErrorDetailsTest, WhatIsAttachedComesBack) {
  for (ErrorDetails details : {Everything(), ErrorDetails()}) {
    const absl::Status status = WithDetails(absl::InternalError("x"), details);
    ASSERT_TRUE(DetailsOf(status).has_value());
    ExpectEqual(*DetailsOf(status), details);
    details.limit = 99;
    ExpectEqual(*DetailsOf(WithDetails(status, details)), details);  // replaced
  }
}

TEST(ErrorDetailsTest, EveryReasonComesBackAlsoOnesThatHaveNoName) {
  for (int number = 0; number < 40; ++number) {
    const auto reason = static_cast<ErrorReason>(number);
    EXPECT_EQ(DetailsOf(MakeError(absl::StatusCode::kNotFound, reason, "x"))->reason, reason);
  }
}

TEST(ErrorDetailsTest, NamesFromOutsideComeBackWhateverTheyHold) {
  ErrorDetails details;
  details.device = "a b=c\n\xff'\\ limit=7 \"";
  details.cure_device = " ";
  ExpectEqual(*DetailsOf(WithDetails(absl::InternalError("x"), details)), details);
}

TEST(ErrorDetailsTest, AStatusPrintsItsDetailsAsText) {
  std::ostringstream printed;
  printed << WithDetails(absl::InvalidArgumentError("add: no"), Everything());
  EXPECT_THAT(printed.str(), HasSubstr("INVALID_ARGUMENT: add: no [devserver/error_details="));
  EXPECT_THAT(printed.str(), HasSubstr("reason=DEVICE_MISMATCH"));
  EXPECT_THAT(printed.str(), HasSubstr("cure_source=6 cure_device=gpu:1 cure_bytes=7"));
  std::ostringstream brief;
  brief << MakeError(absl::StatusCode::kNotFound, ErrorReason::kNoSuchOp, "no op");
  EXPECT_EQ(brief.str(), "NOT_FOUND: no op [devserver/error_details='reason=NO_SUCH_OP']");
}

TEST(ErrorDetailsTest, OfAStatusWithoutThemThereAreNone) {
  EXPECT_FALSE(DetailsOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(DetailsOf(absl::InternalError("x")).has_value());
}

}  // namespace
}  // namespace devserver
