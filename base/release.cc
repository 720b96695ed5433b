#include "base/release.h"

namespace weft {

absl::string_view Release() { return WEFT_RELEASE; }

}  // namespace weft
