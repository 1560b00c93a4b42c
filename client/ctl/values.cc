#include "client/ctl/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"
#include "client/ctl/text.h"
#include "server/tensor/shape.h"

namespace devserver::ctl {
namespace {

constexpr int64_t kEdge = 3;
constexpr int64_t kSkipped = -1;

template <typename T, typename... Precision>
std::string Shortest(T value, Precision... precision) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, precision...);
  return error == std::errc() ? std::string(text, end) : "?";
}

std::string NumberText(double value, v1::DType dtype) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : (value < 0 ? "-inf" : "inf");
  }
  switch (dtype) {
    case v1::F16:
      return Shortest(value, std::chars_format::general, 5);
    case v1::BF16:
      return Shortest(value, std::chars_format::general, 4);
    case v1::F64:
      return Shortest(value);
    default:
      return Shortest(static_cast<float>(value));
  }
}

// The elements in order, whichever list of `values` holds them.
std::vector<std::string> Elements(const v1::FetchedTensor& fetched) {
  const v1::DType dtype = fetched.tensor().dtype();
  std::vector<std::string> texts;
  for (const int64_t value : fetched.values().integers()) {
    texts.push_back(dtype == v1::BOOL ? (value != 0 ? "true" : "false") : std::to_string(value));
  }
  for (const double value : fetched.values().numbers()) {
    if (dtype == v1::BOOL) {
      texts.push_back(value != 0 ? "true" : "false");
    } else if (dtype == v1::I32 || dtype == v1::I64 || dtype == v1::U8) {
      texts.push_back(absl::StrFormat("%.0f", value));
    } else {
      texts.push_back(NumberText(value, dtype));
    }
  }
  return texts;
}

// The indices of an axis that are shown; kSkipped stands for the dots.
std::vector<int64_t> ShownIndices(int64_t size, bool all) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    if (all || size <= 2 * kEdge || i < kEdge || i >= size - kEdge) {
      indices.push_back(i);
    } else if (i == kEdge) {
      indices.push_back(kSkipped);
      i = size - kEdge - 1;
    }
  }
  return indices;
}

class Writer {
 public:
  Writer(std::span<const int64_t> dims, const std::vector<std::string>& elements)
      : dims_(dims),
        elements_(elements),
        all_(static_cast<int64_t>(elements.size()) <= kAllShownMax) {
    for (const std::string& element : elements) {
      width_ = std::max(width_, element.size());
    }
  }

  std::string Write() {
    WriteAxis(0, 0);
    return text_;
  }

 private:
  // The part of the tensor from element `first` on whose leading `axis` indices are fixed.
  void WriteAxis(size_t axis, int64_t first) {
    if (axis == dims_.size()) {
      text_ += Padded(elements_[static_cast<size_t>(first)], width_, Table::Align::kRight);
      return;
    }
    int64_t stride = 1;
    for (size_t i = axis + 1; i < dims_.size(); ++i) {
      stride *= dims_[i];
    }
    const size_t below = dims_.size() - axis - 1;
    // Rows of a matrix on lines of their own, matrices with an empty line between, and so on.
    // Appended, not added up: g++ 12 at -O3 sees an overlap in operator+ that is not there.
    std::string separator(1, ',');
    separator.append(below, '\n').append(below == 0 ? 1 : axis + 1, ' ');
    text_ += "[";
    bool is_first = true;
    for (const int64_t index : ShownIndices(dims_[axis], all_)) {
      text_ += is_first ? "" : separator;
      is_first = false;
      if (index == kSkipped) {
        text_ += "...";
      } else {
        WriteAxis(axis + 1, first + index * stride);
      }
    }
    text_ += "]";
  }

  const std::span<const int64_t> dims_;
  const std::vector<std::string>& elements_;
  const bool all_;
  size_t width_ = 0;
  std::string text_;
};

}  // namespace

std::string ValuesText(const v1::FetchedTensor& fetched) {
  const auto& shape = fetched.tensor().shape();
  const std::span<const int64_t> dims(shape.data(), static_cast<size_t>(shape.size()));
  const std::vector<std::string> elements = Elements(fetched);
  // The server's word, checked before it is used as an index.
  const absl::StatusOr<Shape> checked = Shape::Create(dims);
  if (!checked.ok() || checked->element_count() != static_cast<int64_t>(elements.size())) {
    return "(values and shape don't match)";
  }
  return elements.empty() ? "[]" : Writer(dims, elements).Write();
}

}  // namespace devserver::ctl
