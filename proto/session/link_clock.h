// Says when a link sends without being asked: acknowledgements that are due, messages that are due again.
// Part of link.h.
//
// An acknowledgement rides on the next packet; alone it goes when `ack_every` messages came or `ack_delay_ns`
// passed. Unacknowledged messages go again after `resend_ns` without progress, twice as long after each time,
// at most 16 times as long.
#ifndef WEFT_PROTO_SESSION_LINK_CLOCK_H_
#define WEFT_PROTO_SESSION_LINK_CLOCK_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace weft {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct LinkOptions {
  // kNever fits a channel that loses messages only by breaking, as a gRPC stream: only Resume sends again.
  int64_t resend_ns = kNever;
  int64_t ack_delay_ns = 20'000'000;
  int ack_every = 64;
  size_t held_limit = 4096;
  size_t unacknowledged_limit = 1 << 17;
};

class LinkClock {
 public:
  explicit LinkClock(const LinkOptions& options) : options_(options) {}

  bool AckDue(int64_t now) const { return to_ack_ >= options_.ack_every || (to_ack_ > 0 && now >= ack_at_); }
  bool ResendDue(int64_t now) const { return now >= resend_at_; }

  void Received(int64_t now, int messages);
  void Sent(int64_t now, bool waits_for_ack);
  void Progress(int64_t now);  // notes that an acknowledgement came
  void Resent();
  int64_t next_deadline(bool waits_for_ack) const;

 private:
  int64_t Timeout() const;

  const LinkOptions options_;
  int to_ack_ = 0;
  int64_t ack_at_ = kNever;
  int64_t resend_at_ = kNever;
  int attempts_ = 0;
};

absl::Status LinkOverflow(size_t limit);
absl::Status LinkAckOfUnsent(uint64_t ack, uint64_t last);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_LINK_CLOCK_H_
