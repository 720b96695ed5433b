#include "base/clock_name.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace weft {

std::string ClockName() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!std::getline(file, boot) || boot.empty()) return "";
  // A kernel without time namespaces has no such link, and one clock for all.
  char space[64];
  const ssize_t length = readlink("/proc/self/ns/time", space, sizeof space);
  return length <= 0 ? boot : absl::StrCat(boot, " ", absl::string_view(space, static_cast<size_t>(length)));
}

}  // namespace weft
