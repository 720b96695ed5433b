#include "base/log/flight_ring.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/require.h"

namespace weft {
namespace {

constexpr char kCut[] = "..\"";  // the end of a text that is cut
constexpr size_t kCutSize = sizeof kCut - 1;

bool IsEscaped(char c) { return c == '"' || c == '\\'; }

// Returns the size of the text with its escapes, or more than `most`.
size_t QuotedSize(absl::string_view text, size_t most) {
  size_t size = 0;
  for (size_t i = 0; i < text.size() && size <= most; ++i) size += IsEscaped(text[i]) ? 2 : 1;
  return size;
}

uint32_t ThreadNumber() {
  static thread_local const auto kNumber = static_cast<uint32_t>(syscall(SYS_gettid));
  return kNumber;
}

}  // namespace

EventText::EventText(absl::string_view name) {
  Append("event=");
  Append(name);
}

void EventText::Append(absl::string_view text) {
  const size_t size = std::min(text.size(), kCapacity - size_);
  std::memcpy(text_.data() + size_, text.data(), size);
  size_ += size;
}

EventText& EventText::Add(absl::string_view key, int64_t value) {
  char digits[20];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  return AddWord(key, {digits, static_cast<size_t>(end - digits)});
}

EventText& EventText::AddWord(absl::string_view key, absl::string_view word) {
  if (size_ + key.size() + word.size() + 2 > kCapacity) return *this;
  Append(" ");
  Append(key);
  Append("=");
  Append(word);
  return *this;
}

EventText& EventText::AddText(absl::string_view key, absl::string_view text) {
  if (size_ + key.size() + 3 + kCutSize > kCapacity) return *this;
  Append(" ");
  Append(key);
  Append("=\"");
  const bool fits = QuotedSize(text, kCapacity - size_) < kCapacity - size_;
  for (const char c : text) {
    if (!fits && kCapacity - size_ < (IsEscaped(c) ? 2 : 1) + kCutSize) {
      Append(kCut);
      return *this;
    }
    if (IsEscaped(c)) Append("\\");
    const char shown = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    Append({&shown, 1});
  }
  Append("\"");
  return *this;
}

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
