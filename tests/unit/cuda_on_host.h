// Runs CUDA kernels on the host, so that their indices and arithmetic are tested where there is no GPU.
//
// A test includes this and then a .cu file. A block's threads run one after the other; those of a kernel that
// meets at a barrier (WEFT_LAUNCH of kThreadsThatMeet threads) as threads of the host. Blocks run one after
// the other, in both cases, so shared memory is static. It shows nothing of how a GPU rounds, orders or runs
// out.
#ifndef WEFT_TESTS_UNIT_CUDA_ON_HOST_H_
#define WEFT_TESTS_UNIT_CUDA_ON_HOST_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __grid_constant__
#define cudaGetLastError() cudaSuccess
#define WEFT_LAUNCH(kernel, blocks, threads, stream, ...) \
  ::cuda_on_host::Launch(dim3(blocks), threads, [&] { kernel(__VA_ARGS__); })

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_host {

inline constexpr unsigned kThreadsThatMeet = 128;

struct Meeting {
  std::barrier<> barrier{kThreadsThatMeet};
  std::atomic<bool> all{true};
};
inline Meeting* meeting = nullptr;

inline void OneThread(dim3 blocks, unsigned threads, unsigned t, const std::function<void()>& kernel) {
  threadIdx = dim3(t);
  blockDim = dim3(threads);
  gridDim = blocks;
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = dim3(x, y);
      kernel();
      if (threads != kThreadsThatMeet) continue;
      // The next block begins when all have left this one.
      meeting->barrier.arrive_and_wait();
      meeting->all = true;
      meeting->barrier.arrive_and_wait();
    }
  }
}

inline void Launch(dim3 blocks, unsigned threads, const std::function<void()>& kernel) {
  if (threads != kThreadsThatMeet) {
    for (unsigned t = 0; t < threads; ++t) OneThread(blocks, threads, t, kernel);
    return;
  }
  Meeting here;
  meeting = &here;
  std::vector<std::thread> running;
  for (unsigned t = 0; t < threads; ++t)
    running.emplace_back([&, t] { OneThread(blocks, threads, t, kernel); });
  for (std::thread& thread : running) thread.join();
  meeting = nullptr;
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::meeting->barrier.arrive_and_wait(); }
inline int __syncthreads_and(int value) {
  cuda_on_host::Meeting& meeting = *cuda_on_host::meeting;
  if (value == 0) meeting.all = false;
  meeting.barrier.arrive_and_wait();
  return meeting.all;
}

inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicExch(unsigned long long* at, unsigned long long value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

#endif  // WEFT_TESTS_UNIT_CUDA_ON_HOST_H_
