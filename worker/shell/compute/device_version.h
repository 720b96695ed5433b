// Which build of the interface between worker and device library (device_backend.h) this is.
//
// Both sides are C++ that must agree on every type that crosses, so the version is made of the release and of
// the text of the headers that say those types: it changes exactly when they do. Each side has its own copy
// of these two functions. Pure; any thread.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_
#define WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_

#include "absl/status/status.h"

namespace weft {

// As "0.1.0-3f2a..".
const char* DeviceVersion();

// What a library answers to the version that its loader gave. FailedPrecondition that names both.
absl::Status CheckDeviceVersion(const char* loader);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DEVICE_VERSION_H_
