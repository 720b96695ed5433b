// Keeps memory that a hanging or failed device may still touch. Nobody will know when it could be given back,
// so it stays for the rest of the process, where leak checkers find it. Thread-safe.
#ifndef WEFT_WORKER_SHELL_MEMORY_KEEP_FOREVER_H_
#define WEFT_WORKER_SHELL_MEMORY_KEEP_FOREVER_H_

#include <memory>

namespace weft {

void KeepForever(std::shared_ptr<void> what);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_KEEP_FOREVER_H_
