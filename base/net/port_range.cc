#include "base/net/port_range.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace weft {

std::optional<PortRange> ParsePorts(absl::string_view text) {
  constexpr int kMaxPort = 65535;
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  PortRange ports;
  if (!absl::SimpleAtoi(ends.first, &ports.first)) return std::nullopt;
  if (!absl::SimpleAtoi(absl::StrContains(text, '-') ? ends.second : ends.first, &ports.last))
    return std::nullopt;
  if (ports.first < 1 || ports.last < ports.first || ports.last > kMaxPort) return std::nullopt;
  return ports;
}

}  // namespace weft
