#include "devserver/npy.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
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

// A file by hand. `version` is 1, 2 or 3.
std::string File(int version, const std::string& header, const std::string& data = "") {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  const auto size = static_cast<uint32_t>(header.size());
  std::string length(4, '\0');
  std::memcpy(length.data(), &size, 4);
  return file + length.substr(0, version == 1 ? 2 : 4) + header + data;
}

std::string Header(const std::string& descr, const std::string& order, const std::string& shape) {
  return absl::StrFormat("{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n", descr, order,
                         shape);
}

absl::StatusOr<NpyArray> Parse(const std::string& file) {
  return ParseNpy(std::as_bytes(std::span(file)), "a.npy");
}

// The refusal of a version 1 file with 24 bytes of data.
std::string MessageOf(const std::string& header) {
  const absl::StatusOr<NpyArray> array = Parse(File(1, header, std::string(24, 'x')));
  if (array.ok()) {
    return "it was accepted";
  }
  EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(array.status().message());
}

TEST(Npy, HandBuiltFilesOfAllVersionsAreRead) {
  for (const int version : {1, 2, 3}) {
    const std::string file =
        File(version, Header("'<f4'", "False", "(2, 3)"), "abcdefghijklmnopqrstuvwx");
    const absl::StatusOr<NpyArray> array = Parse(file);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->spec, (TensorSpec{DType::kF32, Shape::Of({2, 3})}));
    EXPECT_EQ(std::memcmp(array->bytes.data(), "abcdefghijklmnopqrstuvwx", 24), 0);
  }
}

TEST(Npy, KeysQuotesAndSpacesAreFree) {
  const std::string data(24, 'x');
  for (const std::string& header : std::vector<std::string>{
           R"({"shape":(24L,),"fortran_order":False,"descr":"|u1"})",
           "{ 'descr' : 'u1' , 'fortran_order':True, 'shape' : ( 24 , ) , }   \n",
           "{'descr': '=u1', 'fortran_order': False, 'shape': (24,)}"}) {
    const absl::StatusOr<NpyArray> array = Parse(File(1, header, data));
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->spec.ToString(), "u8[24]");
  }
}

TEST(Npy, TruncatedAtEveryByteIsRefused) {
  const std::string file = File(2, Header("'<f8'", "False", "(3,)"), std::string(24, 'x'));
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size << " of " << file.size() << " bytes";
  }
  EXPECT_FALSE(Parse(file + "x").ok());
}

TEST(Npy, OtherOrdersAndDTypesAreRefusedWithTheLineThatMendsIt) {
  EXPECT_THAT(MessageOf(Header("'>f4'", "False", "(6,)")),
              HasSubstr("'>f4' is big-endian; save array.astype('<f4') instead"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "True", "(2, 3)")),
              HasSubstr("Fortran order (column by column); save np.ascontiguousarray(array)"));
  EXPECT_THAT(MessageOf(Header("'<i2'", "False", "(12,)")),
              HasSubstr("dtype \"<i2\" is not one that devserverd keeps (f32, f64"));
  EXPECT_THAT(MessageOf(Header("'|V2'", "False", "(12,)")), HasSubstr("perhaps bf16"));
  EXPECT_THAT(MessageOf(Header("'|O'", "False", "(3,)")), HasSubstr("\"|O\" is not one"));
  EXPECT_THAT(MessageOf(Header("[('x', '<f4')]", "False", "(6,)")), HasSubstr("structured array"));
}

TEST(Npy, HeadersOfOtherFormsAreRefused) {
  EXPECT_THAT(MessageOf("{'descr': '<f4', 'shape': (6,), }"), HasSubstr("lacks one of 'descr'"));
  EXPECT_THAT(MessageOf("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"),
              HasSubstr("has the key 'descr' twice"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(6,)") + "x"), HasSubstr("goes on after"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "0", "(6,)")), HasSubstr("lacks True or False"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "6")), HasSubstr("lacks a '('"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(-6,)")), HasSubstr("a size of 0 or more"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(2 3)")), HasSubstr("lacks a ')'"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "__import__('os')", "(6,)")), HasSubstr("True or False"));
  EXPECT_THAT(MessageOf("{'descr': '<f4"), HasSubstr("a string without an end"));
  EXPECT_THAT(MessageOf("{'x': 1}"), HasSubstr("unknown key \"x\""));
  EXPECT_THAT(MessageOf(""), HasSubstr("lacks a '{'"));
}

TEST(Npy, SizesThatOverflowAreRefused) {
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(2147483648, 2147483648, 2147483648, 2)")),
              HasSubstr("more than"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(4611686018427387906,)")),
              HasSubstr("more than"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(9223372036854775808,)")),
              HasSubstr("above 2^63 - 1"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(1,1,1,1,1,1,1,1,6)")),
              HasSubstr("more than 8 dimensions"));
  EXPECT_THAT(MessageOf(Header("'<f4'", "False", "(7,)")),
              HasSubstr("f32[7] takes 28 bytes, the file has 24 after its header"));
}

TEST(Npy, FramingIsCheckedBeforeItIsUsed) {
  std::string file = File(2, "{}");
  std::memset(file.data() + 8, 0xFF, 4);
  EXPECT_THAT(std::string(Parse(file).status().message()),
              HasSubstr("says a header of 4294967295 bytes; 2 are there and the limit is 65536"));
  file[6] = 4;
  EXPECT_THAT(std::string(Parse(file).status().message()), HasSubstr(".npy version 4.0"));
  EXPECT_THAT(std::string(Parse("PK\x03\x04").status().message()),
              HasSubstr("write it with np.save"));
}

TEST(Npy, Bf16CantBeWritten) {
  const absl::Status status = EncodeNpyHeader({DType::kBF16, Shape::Of({2})}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bf16[2]: NumPy has no such dtype"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(".safetensors"));
}

// What NumPy and this file agree on: name, dtype, shape; element i is i mod 251, for bool i mod 2.
struct Sample {
  const char* name;
  const char* numpy_dtype;
  const char* numpy_shape;
  TensorSpec spec;
};
const std::array<Sample, 10> kSamples = {{
    {"f4", "<f4", "(2,3)", {DType::kF32, Shape::Of({2, 3})}},
    {"f8", "<f8", "(7,)", {DType::kF64, Shape::Of({7})}},
    {"f2", "<f2", "(2,1,3)", {DType::kF16, Shape::Of({2, 1, 3})}},
    {"i4", "<i4", "(300,)", {DType::kI32, Shape::Of({300})}},
    {"i8", "<i8", "(5,)", {DType::kI64, Shape::Of({5})}},
    {"u1", "|u1", "(257,)", {DType::kU8, Shape::Of({257})}},
    {"b1", "|b1", "(3,3)", {DType::kBool, Shape::Of({3, 3})}},
    {"scalar", "<f4", "()", {DType::kF32, Shape()}},
    {"empty", "<f4", "(3,0,2)", {DType::kF32, Shape::Of({3, 0, 2})}},
    {"deep", "<f4", "(1,1,1,1,1,1,2,1)", {DType::kF32, Shape::Of({1, 1, 1, 1, 1, 1, 2, 1})}},
}};

constexpr const char* kPythonValues =
    "import numpy as np, sys\n"
    "def values(dtype, shape):\n"
    "  n = int(np.prod(shape, dtype=np.int64))\n"
    "  return (np.arange(n) % (2 if dtype == '|b1' else 251)).astype(dtype).reshape(shape)\n";

class NpyAndNumPy : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    if (Python("import numpy") != 0) {
      GTEST_SKIP() << "/usr/bin/python3 has no numpy (package python3-numpy)";
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  int Python(const std::string& script) const {
    std::ofstream(Path("script.py")) << script;
    return std::system(
        absl::StrFormat("cd '%s' && /usr/bin/python3 script.py", folder_.string()).c_str());
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / absl::StrFormat("npy_test.%d", getpid());
};

TEST_F(NpyAndNumPy, EachReadsWhatTheOtherWrote) {
  std::string write = kPythonValues;
  std::string check = kPythonValues;
  for (const Sample& sample : kSamples) {
    absl::StrAppendFormat(&write, "np.save('%s.npy', values('%s', %s))\n", sample.name,
                          sample.numpy_dtype, sample.numpy_shape);
    absl::StrAppendFormat(&check,
                          "a = np.load('%s.out.npy'); b = values('%s', %s)\n"
                          "assert a.dtype == b.dtype and a.shape == b.shape, (a, b)\n"
                          "assert (a == b).all() and a.flags.c_contiguous, (a, b)\n",
                          sample.name, sample.numpy_dtype, sample.numpy_shape);
  }
  ASSERT_EQ(Python(write), 0);
  for (const Sample& sample : kSamples) {
    const absl::StatusOr<NpyFile> file = LoadNpy(Path(std::string(sample.name) + ".npy"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->array.spec, sample.spec) << sample.name;
    ASSERT_TRUE(SaveNpy(Path(std::string(sample.name) + ".out.npy"), file->array).ok());
  }
  EXPECT_EQ(Python(check), 0);
}

TEST_F(NpyAndNumPy, ValuesAreThoseNumPyWrote) {
  ASSERT_EQ(Python(std::string(kPythonValues) + "np.save('i.npy', values('<i4', (300,)))\n"), 0);
  const absl::StatusOr<NpyFile> file = LoadNpy(Path("i.npy"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::array<int32_t, 300> values;
  ASSERT_EQ(file->array.bytes.size(), sizeof values);
  std::memcpy(values.data(), file->array.bytes.data(), sizeof values);
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[250], 250);
  EXPECT_EQ(values[251], 0);
  EXPECT_EQ(values[299], 48);
}

TEST_F(NpyAndNumPy, OtherVersionsAreReadAndForeignOrdersRefused) {
  ASSERT_EQ(Python("import numpy as np\nfrom numpy.lib import format\n"
                   "for v in (1, 2, 3):\n"
                   "  with open('v%d.npy' % v, 'wb') as f:\n"
                   "    format.write_array(f, np.arange(6, dtype='<f4'), version=(v, 0))\n"
                   "np.save('fortran.npy', np.asfortranarray(np.zeros((2, 3), '<f4')))\n"
                   "np.save('big.npy', np.zeros(3, '>f8'))\n"),
            0);
  for (const char* name : {"v1.npy", "v2.npy", "v3.npy"}) {
    const absl::StatusOr<NpyFile> file = LoadNpy(Path(name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->array.spec.ToString(), "f32[6]");
  }
  EXPECT_THAT(std::string(LoadNpy(Path("fortran.npy")).status().message()),
              HasSubstr("np.ascontiguousarray"));
  EXPECT_THAT(std::string(LoadNpy(Path("big.npy")).status().message()), HasSubstr("big-endian"));
}

}  // namespace
}  // namespace devserver::client
