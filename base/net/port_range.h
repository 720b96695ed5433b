// Parses a range of ports, as a rule of a firewall has it: `20000-20100`, or one port.
//
// One parser serves the worker and weft doctor. Pure.
#ifndef WEFT_BASE_NET_PORT_RANGE_H_
#define WEFT_BASE_NET_PORT_RANGE_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace weft {

// The ports on which a process may listen, both ends included; first 0: any.
struct PortRange {
  int first = 0, last = 0;
};

// Parses FIRST-LAST, or one port. Returns nothing for a text that is neither, for a port that is not from 1
// to 65535, and for a range whose last port is before its first.
std::optional<PortRange> ParsePorts(absl::string_view text);

}  // namespace weft

#endif  // WEFT_BASE_NET_PORT_RANGE_H_
