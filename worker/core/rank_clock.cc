#include "worker/core/rank_clock.h"

namespace weft {

absl::string_view IdleCauseName(IdleCause cause) {
  constexpr absl::string_view kNames[kIdleCauses] = {"dependency", "transfer", "memory", "dispatch",
                                                     "reduce",     "recovery", "no_work"};
  return kNames[static_cast<int>(cause)];
}

void RankClock::NoteCause(int64_t at, IdleCause cause) {
  if (!notes_.empty()) {
    at = std::max(at, notes_.back().at);
    if (notes_.back().at == at) notes_.pop_back();  // it lasted no time
  }
  if (cause != this->cause()) notes_.push_back({at, cause});
}

}  // namespace weft
