// Makes text from elsewhere (a peer, a library, a user) safe for a message, a log or a terminal. Pure.
#ifndef WEFT_BASE_PLAIN_TEXT_H_
#define WEFT_BASE_PLAIN_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// Returns true if all bytes of the text are part of UTF-8.
bool IsUtf8(absl::string_view text);

// Cuts the text to `most` bytes and replaces every byte that is not part of UTF-8 by '?'. Protobuf refuses
// other text, and a library's odd message must not cost the packet that carries it.
std::string CleanText(absl::string_view text, size_t most);

// Cleans the text likewise and writes control characters as \n or \x1b, and a tab as a space, so that the
// text stays on its line and forges no other.
std::string PlainText(absl::string_view text, size_t most);

}  // namespace weft

#endif  // WEFT_BASE_PLAIN_TEXT_H_
