// Provides the GPU of a test program, made once and kept as long as the process lives; without one the
// program ends. Also makes ranks for tests, and waits for the GPU's work.
#ifndef WEFT_TESTS_GPU_THE_GPU_H_
#define WEFT_TESTS_GPU_THE_GPU_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/cuda_backend.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"

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

inline std::unique_ptr<RankDevice> NewRankOfTheGpu(Rank rank) {
  static PlainMemory* const memory = new PlainMemory;
  absl::StatusOr<std::unique_ptr<RankDevice>> made = TheGpu().CreateRankDevice(rank, *memory);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Waits with a deadline: a GPU that hangs fails the test.
inline absl::Status WaitFor(Fence& fence) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < until) {
    const absl::StatusOr<bool> reached = fence.Reached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    std::this_thread::yield();
  }
  return absl::DeadlineExceededError("the GPU did not come to its end within 60 s");
}

}  // namespace weft

#endif  // WEFT_TESTS_GPU_THE_GPU_H_
