// Says for /healthz whether a loop still turns. The loop beats at least every kEvery, also when it has
// nothing to do.
//
// Thread-safe: one thread beats, others ask. Times are of one monotonic clock, in nanoseconds.
#ifndef WEFT_BASE_METRICS_HEARTBEAT_H_
#define WEFT_BASE_METRICS_HEARTBEAT_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace weft {

class Heartbeat {
 public:
  static constexpr int64_t kEvery = 1'000'000'000;
  static constexpr int64_t kMaxSilence = 5'000'000'000;

  explicit Heartbeat(int64_t now) : last_(now) {}

  void Beat(int64_t now) { last_.store(now, std::memory_order_relaxed); }
  // Returns when the loop should wake to beat again.
  int64_t next() const { return last_.load(std::memory_order_relaxed) + kEvery; }

  // Returns "" or "the loop has not turned for 12 s".
  std::string Problem(int64_t now) const {
    const int64_t silence = now - last_.load(std::memory_order_relaxed);
    if (silence <= kMaxSilence) return "";
    return "the loop has not turned for " + std::to_string(silence / 1'000'000'000) + " s";
  }

 private:
  std::atomic<int64_t> last_;
};

}  // namespace weft

#endif  // WEFT_BASE_METRICS_HEARTBEAT_H_
