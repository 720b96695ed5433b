#include "worker/core/rank_clock.h"

namespace weft {

void RankClock::NoteCause(int64_t at, IdleCause cause) {
  if (!notes_.empty()) {
    at = std::max(at, notes_.back().at);
    if (notes_.back().at == at) notes_.pop_back();  // it lasted no time
  }
  if (cause != this->cause()) notes_.push_back({at, cause});
}

void RankClock::Keep(const IdleSpan& span) {
  if (!spans_.empty() && spans_.back().cause == span.cause && spans_.back().end_ns == span.start_ns) {
    spans_.back().end_ns = span.end_ns;
    return;
  }
  spans_.push_back(span);
  if (spans_.size() > max_spans_) spans_.pop_front();
}

}  // namespace weft
