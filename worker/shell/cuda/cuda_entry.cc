// Defines the entry of libweft_cuda (device_backend.h).
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_version.h"
#include "worker/shell/cuda/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) absl::Status weft_device_backend(
    const char* version, const weft::DeviceOptions& options, std::unique_ptr<weft::DeviceBackend>* backend) {
  if (absl::Status same = weft::CheckDeviceVersion(version); !same.ok()) return same;
  absl::StatusOr<std::unique_ptr<weft::DeviceBackend>> made = weft::CreateCudaBackend(options);
  if (!made.ok()) return made.status();
  *backend = *std::move(made);
  return absl::OkStatus();
}
