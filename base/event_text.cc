#include "base/event_text.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

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

}  // namespace weft
