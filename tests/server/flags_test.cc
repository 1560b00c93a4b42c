#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

namespace devserver {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Flags> Parse(std::initializer_list<const char*> arguments) {
  std::vector<const char*> argv = {"devserverd"};
  argv.insert(argv.end(), arguments);
  return ParseFlags(static_cast<int>(argv.size()), argv.data());
}

// A config file that goes when the test ends.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("flags_test." + std::to_string(getpid()) + ".toml")) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  const std::filesystem::path path_;
};

TEST(Flags, NoneGivesTheDefaults) {
  const absl::StatusOr<Flags> flags = Parse({});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(FormatConfig(flags->config), FormatConfig(ServerConfig()));
  EXPECT_FALSE(flags->answer);
  EXPECT_FALSE(flags->check_only);
}

TEST(Flags, WinOverTheFile) {
  const ConfigFile file(
      "[listen]\naddresses = ['127.0.0.1:1']\n[log]\nlevel = 'error'\n[limits]\nsessions = 7\n");
  const absl::StatusOr<Flags> flags =
      Parse({"--log-level", "debug", "--listen", "127.0.0.1:2", "--listen", "[::1]:3", "--config",
             file.path(), "--unix-socket", "/run/x.sock"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->config.listen_addresses, ElementsAre("127.0.0.1:2", "[::1]:3"));
  EXPECT_EQ(flags->config.log_level, "debug");
  EXPECT_EQ(flags->config.unix_socket, "/run/x.sock");
  EXPECT_EQ(flags->config.limits.sessions, 7u);  // what no flag speaks of stays
}

TEST(Flags, SimulateNamesModelAndCount) {
  const absl::StatusOr<Flags> four = Parse({"--simulate", "V100-SXM2-16GB:4"});
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(four->config.devices.sim_model, "V100-SXM2-16GB");
  EXPECT_EQ(four->config.devices.sim_count, 4);
  const absl::StatusOr<Flags> one = Parse({"--simulate", "T4"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->config.devices.sim_count, 1);
}

class BadSimulate : public testing::TestWithParam<const char*> {};
TEST_P(BadSimulate, IsQuoted) {
  const absl::StatusOr<Flags> flags = Parse({"--simulate", GetParam()});
  EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(flags.status().message()), HasSubstr(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Texts, BadSimulate,
                         testing::Values("T4:0", "T4:-1", "T4:65", "T4:four", "T4:", ":4",
                                         "T4:4x"));

TEST(Flags, ReachableAddressNeedsInsecure) {
  const absl::StatusOr<Flags> refused = Parse({"--listen", "0.0.0.0:50151"});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
  EXPECT_TRUE(Parse({"--listen", "0.0.0.0:50151", "--insecure"}).ok());
}

TEST(Flags, UnknownFlagIsNamed) {
  EXPECT_THAT(std::string(Parse({"--lisen", "x"}).status().message()), HasSubstr("--lisen"));
}

TEST(Flags, BadLogLevelNamesTheKnownOnes) {
  EXPECT_THAT(std::string(Parse({"--log-level", "loud"}).status().message()),
              HasSubstr("trace, debug, info"));
}

TEST(Flags, MissingConfigFileIsNamed) {
  EXPECT_THAT(std::string(Parse({"--config", "/nonexistent.toml"}).status().message()),
              HasSubstr("/nonexistent.toml"));
}

TEST(Flags, HelpAndVersionAreAnswers) {
  EXPECT_THAT(Parse({"--help"})->answer.value_or(""), HasSubstr("--simulate"));
  EXPECT_THAT(Parse({"--version"})->answer.value_or(""), HasSubstr(DEVSERVER_VERSION));
}

}  // namespace
}  // namespace devserver
