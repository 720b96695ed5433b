// Makes secrets, hashes them for files, and compares hashes without telling by its time where they differ.
//
// Threads: any. A machine without a source of random numbers ends the process.
#ifndef WEFT_BASE_CERTIFICATES_SECRET_TEXT_H_
#define WEFT_BASE_CERTIFICATES_SECRET_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// Returns 256 random bits as 64 hexadecimal digits.
std::string RandomSecret();

// Returns the SHA-256 of the text as 64 hexadecimal digits.
std::string Sha256Of(absl::string_view text);

bool EqualSecrets(absl::string_view a, absl::string_view b);

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_SECRET_TEXT_H_
