// The GPU of a test program, made once and kept as long as the process lives; without one the program ends.
#ifndef WEFT_TESTS_GPU_THE_GPU_H_
#define WEFT_TESTS_GPU_THE_GPU_H_

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/cuda_backend.h"

namespace weft {

inline DeviceBackend& TheGpu() {
  static DeviceBackend* const gpu = [] {
    absl::StatusOr<std::unique_ptr<DeviceBackend>> made = CreateCudaBackend(DeviceOptions{});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
      std::abort();
    }
    return made->release();
  }();
  return *gpu;
}

}  // namespace weft

#endif  // WEFT_TESTS_GPU_THE_GPU_H_
