// Converts times of a peer's clock to ours.
//
// Each message says when it was sent, on its sender's monotonic clock. The message that seems to have
// travelled fastest of late took almost no time, so its two times say how far the clocks are apart. The error
// is the network's least latency, always in one direction: an event happened at most that much earlier than
// its converted time. "Of late", because the clocks of two machines drift apart by some microseconds a
// second.
//
// Within one machine both ends read one clock (clock_name.h), and nobody needs this. Pure. Not thread-safe.
#ifndef WEFT_BASE_PEER_CLOCK_H_
#define WEFT_BASE_PEER_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace weft {

class PeerClock {
 public:
  static constexpr int64_t kWindow = 10'000'000'000;

  // Notes a message. The times are nanoseconds of the peer's clock and of ours, both less than 2^62.
  void Observe(int64_t sent, int64_t received) {
    if (received - window_start_ >= kWindow) {
      previous_ = received - window_start_ < 2 * kWindow ? current_ : kUnknown;
      current_ = kUnknown;
      window_start_ = received;
    }
    current_ = std::min(current_, received - sent);
  }

  // Returns how far our clock is ahead, to be added to a time of the peer's. Call after the first Observe.
  int64_t ahead() const { return std::min(current_, previous_); }
  // Converts a time of the peer's clock, likewise.
  int64_t ToLocal(int64_t theirs) const { return theirs + ahead(); }

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  int64_t current_ = kUnknown, previous_ = kUnknown;  // least difference in this window and in the one before
  int64_t window_start_ = -kWindow;
};

}  // namespace weft

#endif  // WEFT_BASE_PEER_CLOCK_H_
