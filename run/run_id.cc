#include "run/run_id.h"

#include <random>

#include "absl/strings/str_format.h"

namespace weft {

std::string NewRunId() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

}  // namespace weft
