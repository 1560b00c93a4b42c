// A tensor's values as text, as NumPy prints an array. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "devserver/v1/compute.pb.h"
#include "devserver/v1/types.pb.h"

namespace devserver::ctl {

// Above so many elements an axis longer than 6 shows its first and last three.
inline constexpr int64_t kAllShownMax = 1000;

// "[[1, 2],\n [3, 4]]". Each number with as many digits as its dtype tells apart; -0, nan and inf
// as such.
std::string ValuesText(const v1::FetchedTensor& fetched);

}  // namespace devserver::ctl
