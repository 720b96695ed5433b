// What the commands that start worker processes say about the device that these compute on.
#ifndef WEFT_CLIENT_DEVICE_FLAGS_H_
#define WEFT_CLIENT_DEVICE_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

struct DeviceFlags {
  std::string device = "cpu";  // as ParseDeviceChoice (worker/shell/compute/device_library.h) takes it
  bool graphs = true;
  bool nvtx = false;

  // As `weft-worker` and `weft train` take them.
  std::vector<std::string> Arguments() const;
  // Whether a worker process could start with them, as far as that can be known here. FailedPrecondition.
  absl::Status Check() const;
};

// What a worker process says of itself on standard error begins so.
inline constexpr absl::string_view kWorkerSays = "weft-worker: ";

// What a worker process said on standard error of the device that it took, as "device cuda:0 (GPU-1b2c..)";
// empty as long as it has said nothing.
std::string DeviceSaid(absl::string_view words);

}  // namespace weft

#endif  // WEFT_CLIENT_DEVICE_FLAGS_H_
