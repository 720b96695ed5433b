// Does something while another rank of the GPU captures.
#ifndef WEFT_TESTS_GPU_BESIDE_A_CAPTURE_H_
#define WEFT_TESTS_GPU_BESIDE_A_CAPTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

// Calls `work` while a thread of its own captures, on this device, that `zeroed` is set to zero. The capture
// goes on for a while.
inline void BesideACapture(RankDevice& device, const Tensor& zeroed, const std::function<void()>& work) {
  std::atomic<bool> captures{false};
  std::thread captor([&] {
    device.BeginJob(Job::Compute(0, 0, 0, JobKind::kForward), /*overlapped=*/false);
    const absl::StatusOr<std::unique_ptr<CapturedWork>> captured = device.Capture(
        [&] {
          device.math().Zero(zeroed.data, zeroed.bytes);
          captures = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return absl::OkStatus();
        },
        nullptr);
    // Otherwise a capture that did not begin would be waited for.
    EXPECT_TRUE(captures.exchange(true)) << "the capture did not begin";
    EXPECT_TRUE(captured.ok()) << captured.status();
    (void)device.EndJob();
  });
  while (!captures) std::this_thread::yield();
  work();
  captor.join();
}

}  // namespace weft

#endif  // WEFT_TESTS_GPU_BESIDE_A_CAPTURE_H_
