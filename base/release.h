// Names the release of Weft that a program belongs to.
#ifndef WEFT_BASE_RELEASE_H_
#define WEFT_BASE_RELEASE_H_

#include "absl/strings/string_view.h"

namespace weft {

// Returns the release, as "0.1.0".
absl::string_view Release();

}  // namespace weft

#endif  // WEFT_BASE_RELEASE_H_
