// Makes the text of an event in the form of logfmt, `event=job_begins rank=1 stage=3`, for the flight ring
// (log/flight_ring.h): on the caller's stack, without allocation, and safe in a signal handler. Pure.
#ifndef WEFT_BASE_EVENT_TEXT_H_
#define WEFT_BASE_EVENT_TEXT_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft {

// The text of an event. What has no room is left out; a quoted text is cut, and ends with "..".
class EventText {
 public:
  static constexpr size_t kCapacity = 232;

  // Begins with `event=NAME`.
  explicit EventText(absl::string_view name);

  // Append ` KEY=VALUE`: a number, a word without spaces or quotes, or any text, in quotes.
  EventText& Add(absl::string_view key, int64_t value);
  EventText& AddWord(absl::string_view key, absl::string_view word);
  EventText& AddText(absl::string_view key, absl::string_view text);

  absl::string_view view() const { return {text_.data(), size_}; }

 private:
  void Append(absl::string_view text);

  std::array<char, kCapacity> text_;  // the first size_ characters count
  size_t size_ = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_EVENT_TEXT_H_
