#include "client/ctl/text.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/wire.h"
#include "server/base/status_macros.h"
#include "server/tensor/dtype.h"
#include "server/tensor/shape.h"

namespace devserver::ctl {
namespace {

// Three significant digits.
std::string ThreeDigits(double value) {
  if (value < 9.995) {
    return absl::StrFormat("%.2f", value);
  }
  return value < 99.95 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

// `text` in pieces at `separators`.
std::vector<std::string> Pieces(const std::string& text, std::string_view separators) {
  std::vector<std::string> pieces;
  std::string piece;
  for (const char c : text + ",") {
    if (separators.find(c) == std::string_view::npos) {
      piece += c;
    } else if (!piece.empty()) {
      pieces.push_back(std::exchange(piece, ""));
    }
  }
  return pieces;
}

template <typename T>
absl::StatusOr<T> ParseOne(const std::string& piece, const std::string& text,
                           const std::string& what) {
  const char* begin = piece.data();
  const char* const end = begin + piece.size();
  begin += piece.starts_with('+') ? 1 : 0;
  T value = {};
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end) {
    return Usage(absl::InvalidArgumentError(absl::StrFormat(
        "%s: \"%s\" in \"%s\" is not %s", what, Printable(piece), Printable(text),
        std::is_integral_v<T> ? "a whole number; write a list such as 2,3" : "a number")));
  }
  return value;
}

std::string JsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.add_whitespace = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return "null\n";
  }
  return text;
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    return absl::StrFormat("%d B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%s %s", ThreeDigits(value), kUnits[unit]);
}

std::string RateText(double bytes_per_second) {
  constexpr std::string_view kUnits[] = {"kB/s", "MB/s", "GB/s", "TB/s"};
  double value = bytes_per_second / 1000;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%s %s", ThreeDigits(value), kUnits[unit]);
}

std::string SecondsText(double seconds) {
  if (seconds < 0.9995e-3) {
    return ThreeDigits(seconds * 1e6) + " us";
  }
  return seconds < 0.9995 ? ThreeDigits(seconds * 1e3) + " ms" : ThreeDigits(seconds) + " s";
}

std::string AgeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e15));
  if (whole < 60) {
    return absl::StrFormat("%ds", whole);
  }
  if (whole < 3600) {
    return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  }
  if (whole < 86400) {
    return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  }
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string PercentText(double fraction) {
  return absl::StrFormat("%.0f%%", std::clamp(fraction, 0.0, 1.0) * 100);
}

std::string DTypeText(v1::DType dtype) {
  for (const DType known : kAllDTypes) {
    if (static_cast<int>(known) == static_cast<int>(dtype)) {
      return std::string(DTypeName(known));
    }
  }
  return absl::StrFormat("dtype %d", static_cast<int>(dtype));
}

std::string DimsText(const google::protobuf::RepeatedField<int64_t>& dims) {
  return DimsToString({dims.data(), static_cast<size_t>(dims.size())});
}

std::string SpecText(const v1::Tensor& tensor) {
  return DTypeText(tensor.dtype()) + DimsText(tensor.shape());
}

std::string StateText(v1::Tensor::State state) {
  switch (state) {
    case v1::Tensor::PENDING:
      return "pending";
    case v1::Tensor::READY:
      return "ready";
    case v1::Tensor::FAILED:
      return "FAILED";
    default:
      return "unknown";
  }
}

std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    const auto byte = static_cast<unsigned char>(c);
    // A label may have lines; an error's message may too.
    c = byte == '\n' || byte == '\t' ? ' ' : (byte < 0x20 || byte == 0x7F ? '?' : c);
  }
  return printable;
}

std::string ReceiptText(const v1::Receipt& wire) {
  const client::Receipt receipt = client::ReceiptFrom(wire);
  std::string text = BytesText(receipt.size_bytes);
  if (receipt.legs.empty()) {
    return text + ", nothing moved";
  }
  absl::StrAppendFormat(&text, " %s", Printable(receipt.legs[0].source));
  for (const client::Leg& leg : receipt.legs) {
    absl::StrAppendFormat(&text, " -> %s over %s", Printable(leg.target), leg.medium);
  }
  absl::StrAppendFormat(&text, "; quoted %s", receipt.estimated.ToString());
  if (receipt.measured.known()) {
    absl::StrAppendFormat(&text, ", measured %s", SecondsText(receipt.measured.value));
  }
  if (receipt.simulated.known()) {
    absl::StrAppendFormat(&text, ", simulated %s", SecondsText(receipt.simulated.value));
  }
  if (receipt.measured_over_estimated > 0) {
    absl::StrAppendFormat(&text, " (%.2f times the quote)", receipt.measured_over_estimated);
  }
  return text;
}

std::string TensorReplyText(const v1::TensorReply& reply) {
  const v1::Tensor& tensor = reply.tensor();
  std::string text = absl::StrFormat("tensor %d  %s on %s, %s", tensor.id(), SpecText(tensor),
                                     Printable(tensor.device()), BytesText(tensor.size_bytes()));
  if (tensor.state() != v1::Tensor::READY) {
    absl::StrAppendFormat(&text, ", %s", StateText(tensor.state()));
  }
  if (reply.measured_seconds() > 0) {
    absl::StrAppendFormat(&text, "  measured %s", SecondsText(reply.measured_seconds()));
  }
  if (reply.simulated_seconds() > 0) {
    absl::StrAppendFormat(&text, "  simulated %s", SecondsText(reply.simulated_seconds()));
  }
  text += "\n";
  if (reply.has_receipt() && !reply.receipt().legs().empty()) {
    text += "  " + ReceiptText(reply.receipt()) + "\n";
  }
  return text;
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    cell = Printable(cell);
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(WidthOf(columns_[i].title));
    for (const std::vector<std::string>& row : rows_) {
      widths[i] = std::max(widths[i], WidthOf(row[i]));
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      line += i == 0 ? "" : "  ";
      line += Padded(cell_of(i), widths[i], columns_[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([this](size_t i) { return columns_[i].title; });
  for (const std::vector<std::string>& row : rows_) {
    add_line([&row](size_t i) { return row[i]; });
  }
  return text;
}

size_t WidthOf(std::string_view text) {
  // UTF-8's later bytes are 10xxxxxx.
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Padded(std::string_view text, size_t width, Table::Align align) {
  std::string result;
  size_t taken = 0;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (starts && taken == width) {
      return result;
    }
    taken += starts ? 1 : 0;
    result += c;
  }
  const std::string fill(width - taken, ' ');
  return align == Table::Align::kLeft ? result + fill : fill + result;
}

Json ToJson(const google::protobuf::Message& message) {
  return Json::parse(JsonText(message), nullptr, /*allow_exceptions=*/false);
}

void PrintJson(const google::protobuf::Message& message) { Print(JsonText(message)); }

void PrintJson(const Json& json) {
  Print(json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

absl::StatusOr<std::vector<int64_t>> ParseIntegers(const std::string& text,
                                                   const std::string& what) {
  // "2x3" is 2,3; any other x is a mistake.
  std::string commas = text;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == 'x' && absl::ascii_isdigit(static_cast<unsigned char>(text[i - 1])) &&
        (absl::ascii_isdigit(static_cast<unsigned char>(text[i + 1])) || text[i + 1] == '-')) {
      commas[i] = ',';
    }
  }
  std::vector<int64_t> values;
  for (const std::string& piece : Pieces(commas, ", []()\n\t")) {
    ASSIGN_OR_RETURN(const int64_t value, ParseOne<int64_t>(piece, text, what));
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& text, const std::string& what) {
  std::vector<double> values;
  for (const std::string& piece : Pieces(text, ", []()\n\t")) {
    if (piece == "true" || piece == "True") {
      values.push_back(1);
    } else if (piece == "false" || piece == "False") {
      values.push_back(0);
    } else {
      ASSIGN_OR_RETURN(const double value, ParseOne<double>(piece, text, what));
      values.push_back(value);
    }
  }
  return values;
}

absl::StatusOr<v1::DType> ParseDTypeText(const std::string& text) {
  if (const std::optional<DType> dtype = ParseDType(text); dtype.has_value()) {
    return static_cast<v1::DType>(*dtype);
  }
  std::string names;
  for (const DType dtype : kAllDTypes) {
    absl::StrAppendFormat(&names, "%s%s", names.empty() ? "" : ", ", DTypeName(dtype));
  }
  return Usage(absl::InvalidArgumentError(
      absl::StrFormat("--dtype \"%s\" is not one of %s", Printable(text), names)));
}

absl::StatusOr<v1::Activation> ParseActivationText(const std::string& text) {
  std::string upper = text;
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  v1::Activation activation = v1::NONE;
  if (v1::Activation_Parse(upper, &activation)) {
    return activation;
  }
  return Usage(absl::InvalidArgumentError(absl::StrFormat(
      "--activation \"%s\" is not one of none, relu, gelu, tanh, sigmoid", Printable(text))));
}

}  // namespace devserver::ctl
