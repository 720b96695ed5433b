#include "proto/session/link_clock.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {

int64_t LinkClock::Timeout() const {
  if (options_.resend_ns == kNever) return kNever;
  return options_.resend_ns << std::min(attempts_, 4);
}

void LinkClock::Received(int64_t now, int messages) {
  if (to_ack_ == 0) ack_at_ = now + options_.ack_delay_ns;
  to_ack_ += messages;
}

void LinkClock::Sent(int64_t now, bool waits_for_ack) {
  to_ack_ = 0;
  ack_at_ = kNever;
  if (waits_for_ack && (resend_at_ == kNever || now >= resend_at_) && Timeout() != kNever) {
    resend_at_ = now + Timeout();
  }
}

void LinkClock::Progress(int64_t now) {
  attempts_ = 0;
  resend_at_ = Timeout() == kNever ? kNever : now + Timeout();
}

void LinkClock::Resent() {
  attempts_ = std::min(attempts_ + 1, 4);
  resend_at_ = kNever;  // Sent sets it
}

int64_t LinkClock::next_deadline(bool waits_for_ack) const {
  return std::min(to_ack_ > 0 ? ack_at_ : kNever, waits_for_ack ? resend_at_ : kNever);
}

absl::Status LinkOverflow(size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the peer has not acknowledged ", limit, " messages; it is stuck or gone"));
}

absl::Status LinkAckOfUnsent(uint64_t ack, uint64_t last) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer acknowledges message ", ack, ", but the last one sent is ", last));
}

}  // namespace weft
