// What every op should give: plain loops in extended precision, and the error that the op table
// allows around it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/tensor/op_table.h"
#include "tests/conformance/host_tensor.h"

namespace devserver::conformance {

// One element's exact value and the most that a device may be off. The rounding to the result's
// dtype, and the smallest normal number that flushing may take away, are not in `bound` yet: Judge
// adds them.
struct Expected {
  Real value = 0;
  Real bound = 0;
  bool rounded = true;  // false: the result must be exactly `value`
};

// Element `index` of the op's result. Inputs were checked by InferSpec.
Expected Evaluate(OpCode code, std::span<const HostTensor> inputs, const OpAttributes& attributes,
                  const TensorSpec& output, int64_t index);

// Empty if `result` (one element of `dtype`) is as expected, else what is wrong with it.
std::string Judge(const Expected& expected, Real result, DType dtype);

}  // namespace devserver::conformance
