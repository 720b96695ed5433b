#include "base/clock_name.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace weft {

std::string KernelSpace(const std::string& kind) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64];
  const ssize_t length = readlink(absl::StrCat("/proc/self/ns/", kind).c_str(), space, sizeof space);
  return absl::StrCat(
      boot, "/", length > 0 ? absl::string_view(space, static_cast<size_t>(length)) : absl::string_view());
}

// A kernel without time namespaces has one clock for all.
std::string ClockName() {
  const std::string name = KernelSpace("time");
  return name.front() == '/' ? "" : name;
}

}  // namespace weft
