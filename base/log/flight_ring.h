// Keeps the last events of a process in memory, for a dump when the process stalls or crashes
// (flight_recorder.h).
//
// The ring has a fixed number of slots, allocated once. A note copies its text into the next slot, so it
// takes no lock, allocates nothing and costs tens of nanoseconds; the oldest event is written over.
//
// Invariants: a slot has one writer at a time. A thread that comes to a slot in which another still writes, a
// whole round behind, gives its event up. A slot's sequence number tells a reader which event it holds, and
// that it is whole: a slot that is being written, or was written over meanwhile, is not read.
//
// Thread-safe, and safe in a signal handler, but for the constructor. Reading waits for nobody.
#ifndef WEFT_BASE_LOG_FLIGHT_RING_H_
#define WEFT_BASE_LOG_FLIGHT_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/event_text.h"

namespace weft {

class FlightRing {
 public:
  static constexpr size_t kSlots = 4096;

  // `slots` is a power of two.
  explicit FlightRing(size_t slots = kSlots);
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  // Notes an event of the calling thread at `now`, on the monotonic clock.
  void Note(int64_t now, const EventText& text);

  struct Event {
    int64_t time_ns = 0;  // monotonic clock
    uint32_t thread = 0;  // number of the thread, as gettid(2) says
    size_t size = 0;
    std::array<char, EventText::kCapacity> text;

    absl::string_view view() const { return {text.data(), size}; }
  };
  // Reads the event of a number. Returns false if its slot does not hold it whole.
  bool Read(uint64_t number, Event* event) const;
  // Returns the number of the next event; those that the ring may hold are the `slots()` before it.
  uint64_t next() const { return next_.load(std::memory_order_acquire); }
  size_t slots() const { return mask_ + 1; }

 private:
  static constexpr size_t kWords = EventText::kCapacity / sizeof(uint64_t);
  // The text is in atomic words, since a reader may look while it is written.
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};  // 2n + 1 while event n is written, then 2n + 2
    std::atomic<int64_t> time_ns{0};
    std::atomic<uint64_t> thread_and_size{0};
    std::array<std::atomic<uint64_t>, kWords> text{};
  };

  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace weft

#endif  // WEFT_BASE_LOG_FLIGHT_RING_H_
