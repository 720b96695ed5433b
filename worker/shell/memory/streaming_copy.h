// Copies host memory that is not read again soon, such as a snapshot of a stage: past the caches.
//
// An ordinary copy first reads the lines that it writes over, and takes the place of what the processor needs
// next. glibc writes past the caches only where a copy is larger than most of the last-level cache, which on
// a machine of many cores is never. Pure; any thread. The copy can be seen by other threads when a call
// returns, as after an ordinary one.
#ifndef WEFT_WORKER_SHELL_MEMORY_STREAMING_COPY_H_
#define WEFT_WORKER_SHELL_MEMORY_STREAMING_COPY_H_

#include <cstddef>

namespace weft {

// Copies `bytes` that do not overlap, of any alignment.
void StreamingCopy(void* to, const void* from, size_t bytes);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_STREAMING_COPY_H_
