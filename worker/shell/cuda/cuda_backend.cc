// The entry of libweft_cuda.
#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_version.h"

namespace weft {
namespace {

// Unavailable: what of the machine, its driver or its devices does not serve.
absl::Status CheckDevices(const DeviceOptions& options, int* index) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return absl::UnavailableError(
        "there is no NVIDIA driver in this process (libcuda.so.1 is not here or cannot be used); install the "
        "driver, or give a container its GPU");
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("the CUDA runtime cannot use the GPUs of this machine: ", cudaGetErrorString(counted)));
  }
  if (count == 0) return absl::UnavailableError("there is no GPU that this process may use");
  *index = options.index >= 0 ? options.index : options.process % count;
  if (*index >= count) {
    return absl::UnavailableError(absl::StrCat("there is no device cuda:", *index, ": this process may use ",
                                               count, ", cuda:0 to cuda:", count - 1));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft

extern "C" __attribute__((visibility("default"))) absl::Status weft_device_backend(
    const char* version, const weft::DeviceOptions& options, std::unique_ptr<weft::DeviceBackend>* backend) {
  if (const absl::Status same = weft::CheckDeviceVersion(version); !same.ok()) return same;
  int index = 0;
  if (const absl::Status usable = weft::CheckDevices(options, &index); !usable.ok()) return usable;
  backend->reset();
  return absl::UnimplementedError("libweft_cuda has no backend yet");
}
