// main() of the test programs. GoogleTest's own flags work; besides:
//   --only_file=tests/base/clock_test.cc   runs the tests that are written in that file, and fails
//   if there are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

// A filter that names each test whose source file ends with `file`.
std::string FilterFor(std::string_view file) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (std::string_view(test.file()).ends_with(file)) {
        filter += std::string(suite.name()) + "." + test.name() + ":";
      }
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kOnlyFile = "--only_file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOnlyFile)) {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
    const std::string filter = FilterFor(argument.substr(kOnlyFile.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "no test in this program is written in %s\n",
                   argv[i] + kOnlyFile.size());
      return 2;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
