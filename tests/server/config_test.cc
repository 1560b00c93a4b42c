#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "server/config_keys.h"

namespace devserver {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string MessageOf(const absl::StatusOr<ServerConfig>& config) {
  EXPECT_FALSE(config.ok()) << FormatConfig(*config);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

std::string ReadSample() {
  const std::string path =
      std::string(std::getenv("DEVSERVER_SOURCE_DIR")) + "/deploy/devserverd.toml";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Config, EmptyFileIsTheDefaults) {
  const absl::StatusOr<ServerConfig> config = ParseConfig("", "x.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(FormatConfig(*config), FormatConfig(ServerConfig()));
  EXPECT_TRUE(CheckConfig(*config).ok());
}

TEST(Config, SampleFileIsTheDefaults) {
  const absl::StatusOr<ServerConfig> config = ParseConfig(ReadSample(), "deploy/devserverd.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(FormatConfig(*config), FormatConfig(ServerConfig()));
}

TEST(Config, SampleFileHasEveryKeyAndAReasonForEach) {
  const std::string sample = ReadSample();
  ServerConfig config;
  for (const ConfigKey& key : ConfigKeys(config)) {
    const size_t at = sample.find("\n" + std::string(key.leaf()) + " = ");
    ASSERT_NE(at, std::string::npos) << key.name;
    const size_t line = sample.rfind('\n', at - 1) + 1;
    EXPECT_EQ(sample[line], '#') << "no comment above " << key.name;
  }
}

TEST(Config, EveryValueSurvivesFormatAndParse) {
  ServerConfig config;
  config.name = "b";
  config.listen_addresses = {"[::1]:0", "unix:/tmp/\"odd\\name\x01"};
  config.unix_socket = "/run/x.sock";
  config.insecure = true;
  config.devices.cpu_memory_limit_bytes = 123'456'789;
  config.devices.host_memory_limit_bytes = uint64_t{3} << 40;
  config.devices.sim_count = 8;
  config.devices.sim_paced = true;
  config.limits.lease_seconds = 0.1;
  config.limits.stall_seconds = 7.25;
  config.limits.grace_seconds = 90;  // 1.5 min
  config.log_level = "trace";
  const absl::StatusOr<ServerConfig> back = ParseConfig(FormatConfig(config), "formatted");
  ASSERT_TRUE(back.ok()) << back.status() << "\n" << FormatConfig(config);
  EXPECT_EQ(FormatConfig(*back), FormatConfig(config));
  EXPECT_EQ(back->listen_addresses, config.listen_addresses);
  EXPECT_EQ(back->devices.cpu_memory_limit_bytes, config.devices.cpu_memory_limit_bytes);
  EXPECT_EQ(back->limits.lease_seconds, 0.1);
  EXPECT_EQ(back->limits.stall_seconds, 7.25);
  EXPECT_EQ(back->limits.grace_seconds, 90);
}

TEST(Config, SizesAndTimesTakeUnits) {
  const absl::StatusOr<ServerConfig> config = ParseConfig(R"(
      [devices]
      cpu_memory_bytes = "16GiB"
      pool_cache_bytes = "1.5 GB"
      host_memory_bytes = 4096
      [limits]
      lease_seconds = "1.5min"
      stall_seconds = 2.5
      grace_seconds = "500ms"
      )",
                                                          "x.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->devices.cpu_memory_limit_bytes, uint64_t{16} << 30);
  EXPECT_EQ(config->devices.cache_limit_bytes, 1'500'000'000u);
  EXPECT_EQ(config->devices.host_memory_limit_bytes, 4096u);
  EXPECT_EQ(config->limits.lease_seconds, 90);
  EXPECT_EQ(config->limits.stall_seconds, 2.5);
  EXPECT_EQ(config->limits.grace_seconds, 0.5);
}

TEST(Config, UnknownKeyNamesLineAndNearestKey) {
  EXPECT_THAT(MessageOf(ParseConfig("[limits]\n\nsesions = 4\n", "x.toml")),
              AllOf(HasSubstr("x.toml:3: "), HasSubstr("limits.sesions"),
                    HasSubstr("did you mean limits.sessions?")));
}

TEST(Config, KeyInTheWrongSectionIsPointedToItsOwn) {
  EXPECT_THAT(MessageOf(ParseConfig("[server]\nunix_socket = '/x'\n", "x.toml")),
              HasSubstr("did you mean listen.unix_socket?"));
  EXPECT_THAT(MessageOf(ParseConfig("insecure = true\n", "x.toml")),
              HasSubstr("did you mean listen.insecure?"));
}

TEST(Config, KeyUnlikeAnyOtherIsPointedToTheSample) {
  EXPECT_THAT(MessageOf(ParseConfig("[limits]\nbackpropagation = 4\n", "x.toml")),
              HasSubstr("deploy/devserverd.toml has all"));
}

TEST(Config, UnknownSectionIsAnError) {
  EXPECT_THAT(MessageOf(ParseConfig("[limts]\nsessions = 4\n", "x.toml")),
              HasSubstr("did you mean limits.sessions?"));
  EXPECT_THAT(MessageOf(ParseConfig("[tls]\n", "x.toml")), HasSubstr("there is no key tls"));
}

struct BadValue {
  const char* text;
  std::vector<const char*> said;
};

class ConfigBadValue : public testing::TestWithParam<BadValue> {};

TEST_P(ConfigBadValue, IsNamedWithLineAndRange) {
  const std::string message = MessageOf(ParseConfig(GetParam().text, "x.toml"));
  for (const char* said : GetParam().said) {
    EXPECT_THAT(message, HasSubstr(said));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigBadValue,
    testing::Values(
        BadValue{"[limits]\nsessions = 'many'", {"x.toml:2", "limits.sessions must be an integer"}},
        BadValue{"[limits]\nsessions = 0", {"x.toml:2", "limits.sessions is 0", "from 1 to 65536"}},
        BadValue{"[limits]\nsessions = -1", {"is -1", "from 1 to 65536"}},
        BadValue{"[limits]\nsessions = 1.5", {"an integer, not a floating-point number"}},
        BadValue{"[limits]\nsessions = 99999999999999999999", {"x.toml:2"}},
        BadValue{"[limits]\nmessage_bytes = '5GiB'", {"is 5GiB", "from 64KiB to 1GiB"}},
        BadValue{"[limits]\nmessage_bytes = '4 megs'", {"limits.message_bytes", "4 megs", "MiB"}},
        BadValue{"[limits]\nmessage_bytes = ''", {"is not a size"}},
        BadValue{"[limits]\nmessage_bytes = '0.3B'", {"is not a size"}},
        BadValue{"[limits]\nmessage_bytes = '1e400'", {"is not a size"}},
        BadValue{"[limits]\nlease_seconds = nan",
                 {"limits.lease_seconds is nan", "from 0.1s to 720h"}},
        BadValue{"[limits]\nlease_seconds = inf", {"limits.lease_seconds is inf"}},
        BadValue{"[limits]\nlease_seconds = 'soon'", {"is not a time", "min"}},
        BadValue{"[listen]\ninsecure = 1",
                 {"listen.insecure must be true or false, not an integer"}},
        BadValue{"[listen]\naddresses = '127.0.0.1:1'",
                 {"must be a list of strings, not a string"}},
        BadValue{"[listen]\naddresses = [1]",
                 {"listen.addresses must be a string, not an integer"}},
        BadValue{"[server]\nname = 1979-05-27", {"must be a string, not a date or time"}},
        BadValue{"[log]\nlevel = 'loud'", {"log.level is \"loud\"", "trace, debug, info"}},
        BadValue{"[log]\nlevel = ''", {"log.level is \"\""}},
        BadValue{"[log]\nlevel = 'info, warn'", {"known:"}},
        BadValue{"limits = 4", {"write [limits]"}}, BadValue{"[limits\nsessions = 4", {"x.toml:1"}},
        BadValue{"[limits]\nsessions = 4\nsessions = 5", {"x.toml:3", "sessions"}}));

TEST(Config, FileThatIsTooLongIsRefused) {
  EXPECT_THAT(MessageOf(ParseConfig(std::string(kConfigBytesMax + 1, '\n'), "x.toml")),
              HasSubstr("1048577 bytes"));
}

TEST(Config, MissingFileIsNamed) {
  const absl::Status status = ReadConfigFile("/nonexistent/devserverd.toml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/devserverd.toml"));
}

TEST(Config, FolderInPlaceOfAFileIsAnError) { EXPECT_FALSE(ReadConfigFile("/tmp").ok()); }

TEST(Config, EmptyFileOnDiskIsTheDefaults) { EXPECT_TRUE(ReadConfigFile("/dev/null").ok()); }

TEST(CheckConfig, AddressesFollowThePolicy) {
  ServerConfig config;
  config.listen_addresses = {"127.0.0.1:1", "0.0.0.0:2"};
  EXPECT_THAT(std::string(CheckConfig(config).message()),
              AllOf(HasSubstr("0.0.0.0:2"), HasSubstr("--insecure")));
  config.insecure = true;
  EXPECT_TRUE(CheckConfig(config).ok());
}

TEST(CheckConfig, NoAddressAtAllIsAnError) {
  ServerConfig config;
  config.listen_addresses.clear();
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("listen.addresses"));
  config.unix_socket = "/run/x.sock";
  EXPECT_TRUE(CheckConfig(config).ok());
}

TEST(CheckConfig, RelativeSocketPathIsAnError) {
  ServerConfig config;
  config.unix_socket = "x.sock";
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("absolute"));
}

TEST(CheckConfig, LeaseMustLieWithinItsBounds) {
  ServerConfig config;
  config.limits.lease_seconds_max = 5;
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("limits.lease_seconds_max"));
}

TEST(CheckConfig, ChunksMustFitMessages) {
  ServerConfig config;
  config.limits.chunk_bytes = config.limits.message_bytes;
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("limits.chunk_bytes"));
}

TEST(CheckConfig, MessagesMustFitWhatTheTransportMayHold) {
  ServerConfig config;
  config.limits.transport_bytes = config.limits.message_bytes;
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("limits.transport_bytes"));
}

TEST(CheckConfig, UnknownGpuModelNamesTheKnownOnes) {
  ServerConfig config;
  config.devices.sim_model = "V1000";
  EXPECT_THAT(std::string(CheckConfig(config).message()),
              AllOf(HasSubstr("simulated.model"), HasSubstr("V1000"), HasSubstr("A100-SXM4-80GB")));
}

TEST(CheckConfig, ServerNameCantHoldASlash) {
  ServerConfig config;
  config.name = "a/b";  // "a/gpu:0" is how several servers' devices are told apart
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("server.name"));
}

}  // namespace
}  // namespace devserver
