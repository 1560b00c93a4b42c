#include "server/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace devserver {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ListenAddress Parsed(const std::string& text) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
  EXPECT_TRUE(address.ok()) << address.status();
  return address.value_or(ListenAddress());
}

TEST(ListenAddress, ReadsEachForm) {
  EXPECT_EQ(Parsed("127.0.0.1:50151").port, 50151);
  EXPECT_EQ(Parsed("[::1]:50151").host, "::1");
  EXPECT_EQ(Parsed("localhost:0").host, "localhost");
  EXPECT_EQ(Parsed("unix:/run/x.sock").unix_path, "/run/x.sock");
  EXPECT_EQ(Parsed("unix:///run/x.sock").unix_path, "/run/x.sock");
}

class ListenAddressText : public testing::TestWithParam<const char*> {};
TEST_P(ListenAddressText, IsWrittenAsItWasRead) {
  EXPECT_EQ(Parsed(GetParam()).ToString(), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Forms, ListenAddressText,
                         testing::Values("127.0.0.1:50151", "[::1]:1", "gpu-box.lab:65535",
                                         "unix:/run/x.sock"));

class LocalAddress : public testing::TestWithParam<const char*> {};
TEST_P(LocalAddress, NeedsNoInsecure) {
  EXPECT_TRUE(CheckAddressPolicy(Parsed(GetParam()), false).ok());
}
INSTANTIATE_TEST_SUITE_P(Addresses, LocalAddress,
                         testing::Values("127.0.0.1:1", "127.255.255.254:1", "[::1]:1",
                                         "[0:0:0:0:0:0:0:1]:1", "[::ffff:127.0.0.1]:1",
                                         "localhost:1", "LocalHost:1", "unix:/x"));

class ReachableAddress : public testing::TestWithParam<const char*> {};
TEST_P(ReachableAddress, IsRefusedUnlessInsecure) {
  const absl::Status status = CheckAddressPolicy(Parsed(GetParam()), false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(GetParam()), HasSubstr("--insecure")));
  EXPECT_TRUE(CheckAddressPolicy(Parsed(GetParam()), true).ok());
}
INSTANTIATE_TEST_SUITE_P(Addresses, ReachableAddress,
                         testing::Values("0.0.0.0:1",               // every interface
                                         "[::]:1",                  // every interface
                                         "128.0.0.1:1",             // the first after 127/8
                                         "[::ffff:10.0.0.1]:1",     // IPv4 in IPv6
                                         "[fe80::1]:1",             // link-local
                                         "localhost.example.com:1"  // only begins like it
                                         ));

class BadAddress : public testing::TestWithParam<const char*> {};
TEST_P(BadAddress, IsQuotedWithTheForms) {
  const absl::Status status = ParseListenAddress(GetParam()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(GetParam()), HasSubstr("HOST:PORT")));
}
INSTANTIATE_TEST_SUITE_P(Texts, BadAddress,
                         testing::Values("", "localhost", ":50151", "localhost:", "localhost:65536",
                                         "localhost:-1", "localhost:http", "localhost:1 ",
                                         "::1:50151", "[::1]", "[localhost]:1", "[::1:1",
                                         "dns:///x:1", "a b:1", "unix:", "unix:x.sock",
                                         "unix://x.sock", "http://x:1"));

TEST(ListenAddress, SocketPathThatTheSystemCantHoldIsRefused) {
  EXPECT_TRUE(ParseListenAddress("unix:/" + std::string(106, 'x')).ok());
  EXPECT_THAT(std::string(ParseListenAddress("unix:/" + std::string(107, 'x')).status().message()),
              HasSubstr("limit is 107"));
}

}  // namespace
}  // namespace devserver
