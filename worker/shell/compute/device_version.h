// Identifies the build of the interface between worker and device library (device_backend.h).
//
// Both sides are C++ that must agree on every type that crosses, so the version is made of the release and of
// the text of the headers that declare those types: it changes exactly when they do. Each side has its own
// copy of these two functions. Pure; any thread.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_
#define WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_

#include "absl/status/status.h"

namespace weft {

// Returns the version, as "0.1.0-3f2a..".
const char* DeviceVersion();

// Checks the loader's version on the library's side. FailedPrecondition that names both.
absl::Status CheckDeviceVersion(const char* loader);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_
