// Says a span of time in the sentences of the coordinator. Pure.
#ifndef WEFT_COORDINATOR_CORE_SECONDS_H_
#define WEFT_COORDINATOR_CORE_SECONDS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

// Returns whole seconds, as "30 s".
inline std::string Seconds(int64_t ns) { return absl::StrCat(ns / 1'000'000'000, " s"); }

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SECONDS_H_
