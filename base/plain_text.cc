#include "base/plain_text.h"

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns the length of the UTF-8 sequence that `text` begins with; 0 if it is not one.
size_t SequenceLength(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xc2 ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // These are overlong forms, surrogates, and values beyond the last code point.
  if (lead == 0xe0 && at(1) < 0xa0) return 0;
  if (lead == 0xed && at(1) > 0x9f) return 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) > 0x8f) return 0;
  return length;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string CleanText(absl::string_view text, size_t most) {
  text = text.substr(0, most);
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      clean.push_back('?');
      text.remove_prefix(1);
    } else {
      clean.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return clean;
}

std::string PlainText(absl::string_view text, size_t most) {
  const std::string clean = CleanText(text, most);
  std::string plain;
  plain.reserve(clean.size());
  for (size_t i = 0; i < clean.size(); ++i) {
    const auto c = static_cast<unsigned char>(clean[i]);
    const bool second_set =
        c == 0xc2 && i + 1 < clean.size() && static_cast<unsigned char>(clean[i + 1]) < 0xa0;
    if (c == '\n') {
      plain += "\\n";
    } else if (c == '\t') {
      plain += ' ';
    } else if (c < 0x20 || c == 0x7f) {
      plain += absl::StrCat("\\x", absl::Hex(c, absl::kZeroPad2));
    } else if (second_set) {
      plain += absl::StrCat("\\x", absl::Hex(static_cast<unsigned char>(clean[++i])));
    } else {
      plain.push_back(clean[i]);
    }
  }
  return plain;
}

}  // namespace weft
