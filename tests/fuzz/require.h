// What a fuzz target demands of the code under test.
#pragma once

#include <cstdlib>

namespace devserver {

inline void Require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace devserver
