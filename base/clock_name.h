// Names what two processes of one machine have in common: above all the monotonic clock that this process
// reads, so that two know whether they read the same.
//
// A machine counts from its boot, and a container may have a time namespace of its own with another begin.
#ifndef WEFT_BASE_CLOCK_NAME_H_
#define WEFT_BASE_CLOCK_NAME_H_

#include <string>

namespace weft {

// Returns the boot of the kernel, and the namespace of that kind in which this process is: with "pid", a text
// that is the same for processes that see each other's pids, "BOOT/pid:[4026531836]".
std::string KernelSpace(const std::string& kind);

// Returns a text that is the same for all processes that read this clock, and for no others; "" where that
// cannot be found out.
std::string ClockName();

}  // namespace weft

#endif  // WEFT_BASE_CLOCK_NAME_H_
