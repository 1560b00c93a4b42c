#include "devserver/safetensors.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace devserver::client {
namespace {

using ::testing::HasSubstr;

// A file by hand: the header's size, the header, the data.
std::string File(const std::string& header, const std::string& data = "") {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + data;
}

absl::StatusOr<SafetensorsContents> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "w.safetensors");
}

std::string MessageOf(const std::string& file) {
  const absl::StatusOr<SafetensorsContents> contents = Parse(file);
  if (contents.ok()) {
    return "it was accepted";
  }
  EXPECT_EQ(contents.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(contents.status().message());
}

// One tensor "w" with this dtype, shape and offsets over 24 bytes of data.
std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
  return File(
      absl::StrFormat(R"({"w":{"dtype":%s,"shape":%s,"data_offsets":%s}})", dtype, shape, offsets),
      std::string(24, 'x'));
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Safetensors, HandBuiltFileIsReadByteForByte) {
  const std::string file = File(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
      R"("a":{"data_offsets":[0,4],"shape":[2,1],"dtype":"BF16"}}   )",
      "abcdefghijkl");

  const absl::StatusOr<SafetensorsContents> contents = Parse(file);

  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 2u);
  EXPECT_EQ(contents->tensors[0].name, "b");
  EXPECT_EQ(contents->tensors[0].spec, (TensorSpec{DType::kF32, Shape::Of({2})}));
  EXPECT_EQ(TextOf(contents->tensors[0].bytes), "efghijkl");
  EXPECT_EQ(contents->tensors[1].name, "a");
  EXPECT_EQ(contents->tensors[1].spec, (TensorSpec{DType::kBF16, Shape::Of({2, 1})}));
  EXPECT_EQ(TextOf(contents->tensors[1].bytes), "abcd");
  EXPECT_EQ(contents->metadata, (SafetensorsMetadata{{"format", "pt"}}));
  EXPECT_EQ(contents->Find("a"), &contents->tensors[1]);
  EXPECT_EQ(contents->Find("c"), nullptr);
}

TEST(Safetensors, ScalarsEmptyTensorsAndEmptyFilesAreRead) {
  EXPECT_TRUE(Parse(File("{}")).ok());
  EXPECT_TRUE(Parse(File(R"({"__metadata__":{}})")).ok());
  const absl::StatusOr<SafetensorsContents> contents =
      Parse(File(R"({"none":{"dtype":"F64","shape":[3,0,2],"data_offsets":[0,0]},)"
                 R"("one":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                 R"("end":{"dtype":"BOOL","shape":[0],"data_offsets":[1,1]}})",
                 "\x07"));
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->Find("none")->spec.ToString(), "f64[3,0,2]");
  EXPECT_EQ(contents->Find("one")->spec.ToString(), "u8[]");
  EXPECT_EQ(contents->Find("one")->bytes.size(), 1u);
  EXPECT_EQ(contents->Find("end")->bytes.size(), 0u);
}

TEST(Safetensors, EveryDTypeIsNamedAsTheFormatNamesIt) {
  for (const DType dtype : kAllDTypes) {
    const size_t size = DTypeSize(dtype);
    const absl::StatusOr<SafetensorsContents> contents =
        Parse(File(absl::StrFormat(R"({"w":{"dtype":"%s","shape":[1],"data_offsets":[0,%d]}})",
                                   SafetensorsDTypeName(dtype), size),
                   std::string(size, '\0')));
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_EQ(contents->tensors[0].spec.dtype, dtype);
  }
}

TEST(Safetensors, TruncatedAtEveryByteIsRefused) {
  const std::string file = OneTensor("\"F32\"", "[2,3]", "[0,24]");
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size << " of " << file.size() << " bytes";
  }
}

TEST(Safetensors, HeaderSizeIsCheckedBeforeItIsUsed) {
  std::string file = File("{}");
  std::memset(file.data(), 0xFF, 8);
  EXPECT_THAT(MessageOf(file), HasSubstr("18446744073709551615 bytes, the limit is 100000000"));
  const uint64_t one_more = 3;
  std::memcpy(file.data(), &one_more, 8);
  EXPECT_THAT(MessageOf(file), HasSubstr("should have 3 bytes, 2 are there"));
  EXPECT_THAT(MessageOf(File("")), HasSubstr("doesn't start with '{'"));
  EXPECT_THAT(MessageOf("GGUF\3"), HasSubstr("5 bytes are too few"));
}

TEST(Safetensors, BadOffsetsAreRefusedWithTheirValues) {
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[0,25]")),
              HasSubstr("data_offsets [0,25] are outside the file, which has 24 data bytes"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[24,0]")), HasSubstr("[24,0] are outside"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[18446744073709551592,0]")),
              HasSubstr("are outside the file"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,2]", "[0,24]")),
              HasSubstr("f32[2,2] takes 16 bytes, data_offsets [0,24] span 24"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[0]")),
              HasSubstr("data_offsets has 1 numbers"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[0,24,24]")),
              HasSubstr("data_offsets has the number 24"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2,3]", "[-1,23]")), HasSubstr("the number -1"));
}

TEST(Safetensors, OverlapsAndGapsAreRefused) {
  const auto two = [](const std::string& first, const std::string& second) {
    return File(absl::StrFormat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":%s},)"
                                R"("b":{"dtype":"U8","shape":[4],"data_offsets":%s}})",
                                first, second),
                std::string(8, 'x'));
  };
  EXPECT_TRUE(Parse(two("[4,8]", "[0,4]")).ok());
  EXPECT_THAT(MessageOf(two("[0,4]", "[3,7]")), HasSubstr("\"b\" at [3,7] overlaps \"a\""));
  EXPECT_THAT(MessageOf(two("[0,4]", "[0,4]")), HasSubstr("overlaps"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[5]", "[4,24]")),
              HasSubstr("bytes 0 to 4 of its data, before tensor \"w\", belong to no tensor"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[5]", "[0,20]")),
              HasSubstr("the last 4 of its 24 data bytes"));
}

TEST(Safetensors, BadShapesAreRefused) {
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[-2,3]", "[0,24]")), HasSubstr("the number -2"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[2.0,3]", "[0,24]")), HasSubstr("the number 2.0"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[[2],3]", "[0,24]")), HasSubstr("shape has a list"));
  // Products that wrap around to a small number.
  EXPECT_THAT(MessageOf(OneTensor(
                  "\"F32\"", "[2147483648,2147483648,2147483648,2147483648,2147483648]", "[0,24]")),
              HasSubstr("more than"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[4611686018427387906]", "[0,24]")),
              HasSubstr("more than"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[18446744073709551615]", "[0,24]")),
              HasSubstr("above 2^63 - 1"));
  EXPECT_THAT(MessageOf(OneTensor("\"F32\"", "[1,1,1,1,1,1,1,2,3]", "[0,24]")),
              HasSubstr("more than 8 dimensions"));
}

TEST(Safetensors, UnsupportedDTypeIsNamedWithTheOnesThatAre) {
  const std::string message = MessageOf(OneTensor("\"F8_E4M3\"", "[24]", "[0,24]"));
  EXPECT_THAT(message, HasSubstr("w.safetensors: tensor \"w\": dtype \"F8_E4M3\""));
  EXPECT_THAT(message, HasSubstr("F32, F64, F16, BF16, I32, I64, U8, BOOL"));
  EXPECT_THAT(MessageOf(OneTensor("7", "[24]", "[0,24]")), HasSubstr("dtype is the number 7"));
}

TEST(Safetensors, NamesAndKeysMayAppearOnce) {
  const std::string tensor = R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(MessageOf(File("{" + tensor + "," + tensor + "}")),
              HasSubstr("the header has \"w\" twice"));
  EXPECT_THAT(MessageOf(File(R"({"w":{"dtype":"U8","dtype":"U8"}})")),
              HasSubstr("dtype is there twice"));
  EXPECT_THAT(MessageOf(File(R"({"__metadata__":{"k":"1","k":"2"}})")),
              HasSubstr("\"k\" is there twice"));
}

TEST(Safetensors, HeadersOfOtherFormsAreRefused) {
  EXPECT_THAT(MessageOf(File("{]")), HasSubstr("the header is not JSON"));
  EXPECT_THAT(MessageOf(File("{} {}")), HasSubstr("the header is not JSON"));
  EXPECT_THAT(MessageOf(File("[]")), HasSubstr("doesn't start with '{'"));
  EXPECT_THAT(MessageOf(File(R"({"w":[]})")), HasSubstr("tensor \"w\": is a list"));
  EXPECT_THAT(MessageOf(File(R"({"w":{}})")), HasSubstr("lacks one of dtype"));
  EXPECT_THAT(MessageOf(File(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})")),
              HasSubstr("unknown key \"x\""));
  EXPECT_THAT(MessageOf(File(R"({"__metadata__":{"k":1}})")), HasSubstr("values must be strings"));
  EXPECT_THAT(MessageOf(File("{\"\xFF\":1}")), HasSubstr("the header is not JSON"));
  // Deep nesting ends at its first level.
  EXPECT_THAT(MessageOf(File("{\"w\":" + std::string(1'000'000, '['))), HasSubstr("is a list"));
}

TEST(Safetensors, MessagesEscapeAndCutWhatTheFileSays) {
  const std::string message =
      MessageOf(File(absl::StrFormat(R"({"\u001b[31m%s":1})", std::string(5000, 'n'))));
  EXPECT_THAT(message, HasSubstr("\\033[31mnnn"));
  EXPECT_LT(message.size(), 300u);
}

class SafetensorsFiles : public testing::Test {
 protected:
  SafetensorsFiles() { std::filesystem::create_directory(folder_); }
  ~SafetensorsFiles() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / absl::StrFormat("safetensors_test.%d", getpid());
};

TEST_F(SafetensorsFiles, SavedFileIsReadBackWithNamesAndMetadata) {
  const std::vector<float> weight = {1.5F, -0.0F, 3e38F, 4, 5, 6};
  const std::vector<int64_t> steps = {-1};
  const std::vector<SafetensorsEntry> tensors = {
      {"layer \"0\"/ü", {DType::kF32, Shape::Of({2, 3})}, std::as_bytes(std::span(weight))},
      {"", {DType::kI64, Shape()}, std::as_bytes(std::span(steps))},
      {"none", {DType::kF16, Shape::Of({0, 4})}, {}}};
  const SafetensorsMetadata metadata = {{"note", "line\nbreak"}, {"", ""}};

  ASSERT_TRUE(SaveSafetensors(Path("w.safetensors"), tensors, metadata).ok());
  absl::StatusOr<SafetensorsFile> loaded = LoadSafetensors(Path("w.safetensors"));

  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const SafetensorsFile moved = *std::move(loaded);  // The bytes stay valid.
  ASSERT_EQ(moved.contents.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(moved.contents.tensors[i].name, tensors[i].name);
    EXPECT_EQ(moved.contents.tensors[i].spec, tensors[i].spec);
    EXPECT_EQ(TextOf(moved.contents.tensors[i].bytes), TextOf(tensors[i].bytes));
  }
  EXPECT_EQ(moved.contents.metadata, metadata);
  // The folder holds the file and no leftovers.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(SafetensorsFiles, DataStartsAtAMultipleOfEight) {
  const std::byte one[1] = {};
  for (int length = 0; length < 9; ++length) {
    const SafetensorsEntry entry = {
        std::string(static_cast<size_t>(length), 'n'), {DType::kU8, Shape::Of({1})}, one};
    const absl::StatusOr<std::string> header = EncodeSafetensorsHeader({&entry, 1}, {});
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->size() % 8, 0u);
  }
}

TEST_F(SafetensorsFiles, WhatTheFormatCantHoldIsRefusedBeforeAFileIsTouched) {
  const std::byte bytes[4] = {};
  const TensorSpec spec = {DType::kU8, Shape::Of({4})};
  const auto save = [&](std::vector<SafetensorsEntry> tensors,
                        const SafetensorsMetadata& metadata) {
    return std::string(SaveSafetensors(Path("no.safetensors"), tensors, metadata).message());
  };
  EXPECT_THAT(save({{"w", spec, bytes}, {"w", spec, bytes}}, {}), HasSubstr("another one is"));
  EXPECT_THAT(save({{"__metadata__", spec, bytes}}, {}), HasSubstr("keeps its metadata there"));
  EXPECT_THAT(save({{"w", spec, std::span(bytes).first(3)}}, {}),
              HasSubstr("u8[4] takes 4 bytes, 3 were given"));
  EXPECT_THAT(save({{"\xFF", spec, bytes}}, {}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(save({}, {{"k", "\xC3"}}), HasSubstr("is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(Path("no.safetensors")));
}

TEST_F(SafetensorsFiles, FileErrorsNameTheFileAndTheCause) {
  const absl::Status missing = LoadSafetensors(Path("missing")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(Path("missing")));
  EXPECT_FALSE(LoadSafetensors(folder_.string()).ok());
  EXPECT_EQ(SaveSafetensors(Path("no/such/folder"), {}).code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFiles, FailedWriteLeavesTheOldFile) {
  const std::byte bytes[4] = {};
  const SafetensorsEntry good = {"w", {DType::kU8, Shape::Of({4})}, bytes};
  const SafetensorsEntry bad = {"w", {DType::kU8, Shape::Of({5})}, bytes};
  ASSERT_TRUE(SaveSafetensors(Path("w.safetensors"), {&good, 1}).ok());
  ASSERT_FALSE(SaveSafetensors(Path("w.safetensors"), {&bad, 1}).ok());
  EXPECT_TRUE(LoadSafetensors(Path("w.safetensors")).ok());
}

}  // namespace
}  // namespace devserver::client
