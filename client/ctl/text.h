// How devserverctl writes: units, tables, JSON. Text that others chose (labels, session names) is
// stripped of control characters, so that it can't command a terminal. Thread safety: any thread.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devserver/v1/compute.pb.h"
#include "devserver/v1/types.pb.h"

namespace devserver::ctl {

using Json = nlohmann::ordered_json;

std::string BytesText(uint64_t bytes);          // "24 B", "1.50 KiB", "16.0 GiB"
std::string RateText(double bytes_per_second);  // "1.23 GB/s": decimal, as links are rated
std::string SecondsText(double seconds);        // "12.3 us", "4.56 ms", "7.89 s"
std::string AgeText(double seconds);            // "12s", "3m05s", "2h10m", "3d04h"
std::string PercentText(double fraction);       // "45%"
std::string DTypeText(v1::DType dtype);         // "f32"
std::string DimsText(const google::protobuf::RepeatedField<int64_t>& dims);  // "[2,3]"
std::string SpecText(const v1::Tensor& tensor);                              // "f32[2,3]"
std::string StateText(v1::Tensor::State state);                              // "ready"
// `text` with control characters replaced by '?'.
std::string Printable(std::string_view text);

// "24 B gpu:0 -> gpu:1 over nvlink; quoted 10.0 us (configured), measured 3.1 us, simulated 10.0
// us"
std::string ReceiptText(const v1::Receipt& receipt);

// What a command made: "tensor 3  f32[2,3] on gpu:1, 24 B" and how long it took, measured and
// simulated apart.
std::string TensorReplyText(const v1::TensorReply& reply);

// Columns as wide as their widest cell, two spaces between them, a header above.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as there are columns.
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters of `text` in UTF-8.
size_t WidthOf(std::string_view text);
// `text` made exactly `width` characters wide: cut or filled with spaces.
std::string Padded(std::string_view text, size_t width, Table::Align align = Table::Align::kLeft);

// As grpcurl prints it: camelCase, 64-bit numbers as strings, NaN and infinities as strings;
// defaults included.
Json ToJson(const google::protobuf::Message& message);
// One document with a newline, on stdout. A message goes out as protobuf wrote it: a -0 in it would
// not survive Json.
void PrintJson(const google::protobuf::Message& message);
void PrintJson(const Json& json);
// To stdout.
void Print(const std::string& text);

// "2,3", "[2, 3]", "2x3" as a list; "" and "[]" as an empty one. Usage() names `what` and the text
// otherwise.
absl::StatusOr<std::vector<int64_t>> ParseIntegers(const std::string& text,
                                                   const std::string& what);
// Also "nan", "inf", "-0". Brackets may nest and are ignored.
absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& text, const std::string& what);
absl::StatusOr<v1::DType> ParseDTypeText(const std::string& text);
absl::StatusOr<v1::Activation> ParseActivationText(const std::string& text);

}  // namespace devserver::ctl
