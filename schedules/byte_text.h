// Writes numbers of bytes as people read them.
#ifndef WEFT_SCHEDULES_BYTE_TEXT_H_
#define WEFT_SCHEDULES_BYTE_TEXT_H_

#include <string>

namespace weft {

// Returns "0 B", "512 B", "1.5 KiB", "3.2 GiB".
std::string FormatBytes(double bytes);

}  // namespace weft

#endif  // WEFT_SCHEDULES_BYTE_TEXT_H_
