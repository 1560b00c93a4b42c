// The cases of the op suite. A new op adds its rows to op_cases.cc.
#pragma once

#include <string>
#include <vector>

#include "server/tensor/op_table.h"
#include "tests/conformance/host_tensor.h"

namespace devserver::conformance {

// What the inputs hold.
enum class Fill {
  kOrdinary,  // floats about 1, integers of the whole range
  kPositive,  // above 0
  kWide,      // floats of every magnitude that the dtype has
  kSpecial,   // the ordinary ones with NaN, infinities, signed zeros and the dtype's limits among
              // them
};

struct OpCase {
  OpCode code;
  std::vector<std::vector<int64_t>> shapes;  // of the inputs
  OpAttributes attributes;
  Fill fill = Fill::kOrdinary;

  std::string ToString() const;
};

// Every shape and attribute that `code` is tried with on `dtype`.
std::vector<OpCase> CasesOf(OpCode code, DType dtype);

// The inputs of a case, the same for the same seed. For sources `dtype` only goes to
// MakeAttributes.
std::vector<HostTensor> MakeInputs(const OpCase& test, DType dtype, uint64_t seed);
// The case's attributes, with `dtype` as the result's for sources.
OpAttributes MakeAttributes(const OpCase& test, DType dtype);

}  // namespace devserver::conformance
