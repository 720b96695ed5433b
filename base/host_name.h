// Returns the name of this machine, as processes tell it to one another.
#ifndef WEFT_BASE_HOST_NAME_H_
#define WEFT_BASE_HOST_NAME_H_

#include <string>

namespace weft {

// Returns "" where it cannot be read.
std::string HostName();

}  // namespace weft

#endif  // WEFT_BASE_HOST_NAME_H_
