// Converts times of a device to the host's clock, without waiting for the device.
//
// A device measures spans between its own events. One of them, the base, is given a time of the host once;
// the times of all others follow from the spans to them. The two clocks drift apart, by some microseconds a
// second. But no work starts before it was given to the device, or ends after it was seen to have ended. A
// time that breaks one of these shows how far the clocks are apart, and moves them together. As long as the
// worker looks often and the device is idle now and then, that keeps times within microseconds. Pure. One
// thread at a time.
#ifndef WEFT_WORKER_SHELL_CUDA_DEVICE_CLOCK_H_
#define WEFT_WORKER_SHELL_CUDA_DEVICE_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace weft {

class DeviceClock {
 public:
  struct Span {
    int64_t start_ns = 0, end_ns = 0;
  };

  // Maps a span that began and ended so many milliseconds after the base, where the base is at `base_ns`. The
  // host gave the work to the device at `given_ns` and saw at `seen_ns` that it had ended.
  Span Map(int64_t base_ns, double start_ms, double end_ms, int64_t given_ns, int64_t seen_ns) {
    const int64_t start = base_ns + shift_ns_ + static_cast<int64_t>(start_ms * 1e6);
    const int64_t end = base_ns + shift_ns_ + static_cast<int64_t>(end_ms * 1e6);
    int64_t move = 0;
    if (end > seen_ns) {
      move = seen_ns - end;
    } else if (start < given_ns) {
      move = std::min(given_ns - start, seen_ns - end);
    }
    shift_ns_ += move;
    // A span that rounding makes longer than the host's begins when it was given.
    return {std::max(start + move, given_ns), end + move};
  }

  // Returns how far the device's times are moved by now.
  int64_t shift_ns() const { return shift_ns_; }

 private:
  int64_t shift_ns_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_DEVICE_CLOCK_H_
