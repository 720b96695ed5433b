// Reads how much memory this process can still get, and whether the kernel has ended processes for want of
// it.
//
// A process may use what the machine has available, and no more than each control group above it allows. The
// machine's own figures do not include a group's limit; in a container that limit is the one that counts.
#ifndef WEFT_BASE_HOST_MEMORY_H_
#define WEFT_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

struct HostMemory {
  std::optional<int64_t> available;  // bytes of the machine (MemAvailable)
  // Bytes under the limit of the control group, or of the narrowest above it.
  std::optional<int64_t> group_remaining;
  // Returns the lesser of the two, or nothing if neither is known.
  std::optional<int64_t> Least() const;
  // Returns "21.3 GiB available on the machine, 1.9 GiB left by its control group".
  std::string Describe() const;
};

// Reads the figures from the kernel's files below `root`, which is "" except in tests.
HostMemory ReadHostMemory(const std::string& root = "");

// Returns how many processes the kernel has killed because memory was out: in the control group of this
// process, or on the whole machine where groups do not say.
int64_t CountMemoryKills(const std::string& root = "");

// Returns the figure behind `key` and blanks at the beginning of a line ("MemAvailable:   123 kB", "oom_kill
// 3").
std::optional<int64_t> FigureOf(absl::string_view text, absl::string_view key);

}  // namespace weft

#endif  // WEFT_BASE_HOST_MEMORY_H_
