// Loads the device that `--device` names from a shared library, when it is asked for.
//
// The worker itself knows the CPU. A device of another kind is `libweft_KIND.so`, looked for in the folders
// of WEFT_DEVICE_PATH, beside the program and in ../lib; it is loaded once and stays. `cuda` is one such
// kind, and the only one that is known by name here: before its library, which maps a gigabyte, is touched,
// the NVIDIA driver is asked whether it could serve, so that a machine without one gets an answer at once.
//
// Main thread, before other threads and before anything uses LibTorch, which remembers at its first use which
// devices there are. Needs neither LibTorch nor CUDA to build. Failure: every sentence says what is missing
// and what to do about it; none of them changes by trying again.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DEVICE_LIBRARY_H_
#define WEFT_WORKER_SHELL_COMPUTE_DEVICE_LIBRARY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/compute/device_backend.h"

namespace weft {

// A choice: `cpu`, `auto`, or a kind with or without a device's index, as `cuda` and `cuda:1`.
struct DeviceChoice {
  std::string kind = "cpu";
  int index = -1;  // -1: the library chooses, by the number of the process
};

// Parses a choice. InvalidArgument in a sentence.
absl::StatusOr<DeviceChoice> ParseDeviceChoice(absl::string_view text);

// The places where libraries and the driver are looked for.
struct DeviceSearch {
  std::vector<std::string> folders;
  std::string cuda_driver = "libcuda.so.1";
  std::string cuda_driver_release = "/sys/module/nvidia/version";  // a file; need not be there
};
DeviceSearch DefaultDeviceSearch();

struct LoadedDevice {
  std::unique_ptr<DeviceBackend> backend;  // null: the CPU
  // Names the device that computes, and for `auto` the reason; empty where the CPU was asked for.
  std::string announcement;
};

// Loads a device. `options.index` is the choice's. FailedPrecondition: no driver or an old one, no such
// device, no such library, or one that cannot be loaded, is of another build or refuses. `auto` takes the CPU
// then.
absl::StatusOr<LoadedDevice> LoadDevice(const DeviceChoice& choice, DeviceOptions options,
                                        const DeviceSearch& search);

// Checks what can be known without loading the library: that it and, for `cuda`, the driver are there. OK for
// `cpu` and `auto`. Failure as LoadDevice's.
absl::Status CheckDevice(const DeviceChoice& choice, const DeviceSearch& search);

// Checks the machine before LoadDevice loads libweft_cuda. Keeps the driver's library loaded.
absl::Status CheckCudaDriver(const DeviceSearch& search, int index);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DEVICE_LIBRARY_H_
