// Holds the flags for the device on which worker processes compute, for the commands that start them.
#ifndef WEFT_CLIENT_TRAINING_DEVICE_FLAGS_H_
#define WEFT_CLIENT_TRAINING_DEVICE_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

struct DeviceFlags {
  // Device, as ParseDeviceChoice (worker/shell/compute/device_library.h) takes it.
  std::string device = "cpu";
  bool graphs = true;
  bool nvtx = false;

  // Returns the flags as `weft-worker` and `weft train` take them.
  std::vector<std::string> Arguments() const;
  // Checks whether a worker process could start with them, as far as that can be known here.
  // FailedPrecondition.
  absl::Status Check() const;
};

// The beginning of a worker process's own lines on standard error.
inline constexpr absl::string_view kWorkerSays = "weft-worker: ";

// Returns the device that a worker process named on standard error, as "device cuda:0 (GPU-1b2c..)"; empty as
// long as it has named none.
std::string ReportedDevice(absl::string_view words);

// The words of lines about passes that are not captured as CUDA graphs (docs/guide/gpu.md).
inline constexpr absl::string_view kWithoutGraphs = " runs without graphs, ";
// Returns the lines about such passes, without their beginning "weft: ". One that lacks its beginning or has
// no end yet is left out.
std::vector<std::string> LinesAboutGraphs(absl::string_view words);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_DEVICE_FLAGS_H_
