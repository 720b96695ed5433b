#include "base/log/flight_ring.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/require.h"

namespace weft {
namespace {

uint32_t ThreadNumber() {
  static thread_local const auto kNumber = static_cast<uint32_t>(syscall(SYS_gettid));
  return kNumber;
}

}  // namespace

FlightRing::FlightRing(size_t slots) : mask_(slots - 1), slots_(std::make_unique<Slot[]>(slots)) {
  Require(slots > 0 && (slots & mask_) == 0, "the slots of a flight ring are a power of two");
}

// The parts of the event are stored with release and read with acquire: a reader that sees a part of this
// event also sees that its slot was taken for it. On x86-64 both are plain moves.
void FlightRing::Note(int64_t now, const EventText& text) {
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[number & mask_];
  const uint64_t writing = 2 * number + 1;
  uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  const bool is_free = (before & 1) == 0 && before < writing;
  if (!is_free || !slot.sequence.compare_exchange_strong(before, writing, std::memory_order_acquire,
                                                         std::memory_order_relaxed))
    return;
  const absl::string_view view = text.view();
  slot.time_ns.store(now, std::memory_order_release);
  slot.thread_and_size.store(uint64_t{ThreadNumber()} << 32 | view.size(), std::memory_order_release);
  for (size_t at = 0; at < view.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, view.data() + at, std::min(sizeof word, view.size() - at));
    slot.text[at / sizeof word].store(word, std::memory_order_release);
  }
  slot.sequence.store(writing + 1, std::memory_order_release);
}

bool FlightRing::Read(uint64_t number, Event* event) const {
  const Slot& slot = slots_[number & mask_];
  const uint64_t whole = 2 * number + 2;
  if (slot.sequence.load(std::memory_order_acquire) != whole) return false;
  event->time_ns = slot.time_ns.load(std::memory_order_acquire);
  const uint64_t thread_and_size = slot.thread_and_size.load(std::memory_order_acquire);
  event->thread = static_cast<uint32_t>(thread_and_size >> 32);
  event->size = std::min<size_t>(thread_and_size & 0xffff'ffff, EventText::kCapacity);
  for (size_t at = 0; at < event->size; at += sizeof(uint64_t)) {
    const uint64_t word = slot.text[at / sizeof word].load(std::memory_order_acquire);
    std::memcpy(event->text.data() + at, &word, std::min(sizeof word, event->size - at));
  }
  return slot.sequence.load(std::memory_order_relaxed) == whole;
}

}  // namespace weft
