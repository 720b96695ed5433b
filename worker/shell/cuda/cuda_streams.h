// Holds the streams of one rank: two lanes for jobs and one for copies each way (cuda_rank_device.h).
//
// They are the rank's own: nobody else captures on them or waits for them. Later ranks use them again; they
// are never destroyed, since blocks of LibTorch's allocator refer to them as long as the process lives.
// Threads: any.
#ifndef WEFT_WORKER_SHELL_CUDA_CUDA_STREAMS_H_
#define WEFT_WORKER_SHELL_CUDA_CUDA_STREAMS_H_

#include <c10/cuda/CUDAStream.h>

#include <array>

namespace weft {

struct CudaStreams {
  static constexpr int kLanes = 2;
  std::array<c10::cuda::CUDAStream, kLanes> lanes;
  c10::cuda::CUDAStream to_host, to_device;

  // Takes free streams or makes new ones. c10::Error where the device has none.
  static CudaStreams Take(int device);
  static void Return(const CudaStreams& streams);
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CUDA_CUDA_STREAMS_H_
