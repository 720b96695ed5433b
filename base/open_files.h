// Raises the limit of open files of this process.
#ifndef WEFT_BASE_OPEN_FILES_H_
#define WEFT_BASE_OPEN_FILES_H_

#include <cstdint>

namespace weft {

// Raises the soft limit to the hard one, at most to a million, and returns the new limit. The usual soft
// limit of 1024 is for programs that use select(). A daemon with a connection for each worker, client or peer
// reaches it, and libraries close their listening sockets for good when no descriptor is left. Call it before
// threads start. Never fails: a limit that cannot be raised stays.
int64_t RaiseOpenFileLimit();

}  // namespace weft

#endif  // WEFT_BASE_OPEN_FILES_H_
