#include "schedules/timeline.h"

namespace weft {

absl::string_view IdleCauseName(IdleCause cause) {
  constexpr absl::string_view kNames[kIdleCauses] = {"dependency", "transfer", "limit",    "memory",
                                                     "dispatch",   "reduce",   "recovery", "no_work"};
  return kNames[static_cast<int>(cause)];
}

}  // namespace weft
