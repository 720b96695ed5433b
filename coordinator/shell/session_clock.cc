#include "coordinator/shell/session_clock.h"

#include <variant>

#include "proto/session/message_times.h"

namespace weft {

void SessionClock::Observe(int64_t sent_ns, int64_t now) {
  constexpr int64_t kMost = int64_t{1} << 61;  // sums of such times do not overflow
  if (sent_ns <= 0 || sent_ns > kMost) return;
  peer_.Observe(sent_ns, now);
  observed_ = true;
}

void SessionClock::Convert(const std::string& own, FromWorker* message) {
  if (const auto* hello = std::get_if<Hello>(message))
    differs_ = !hello->clock.empty() && !own.empty() && hello->clock != own;
  if (differs_ && observed_) MoveTimes(peer_.ahead(), message);
}

}  // namespace weft
