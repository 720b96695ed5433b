#include "worker/shell/cuda/cuda_streams.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace weft {
namespace {

// Keeps the streams that no rank has. Lives as long as the process.
struct FreeStreams {
  static FreeStreams& Of() {
    static FreeStreams* const free = new FreeStreams;
    return *free;
  }
  Mutex mutex;
  std::map<int, std::vector<CudaStreams>> of_device ABSL_GUARDED_BY(mutex);
};

c10::cuda::CUDAStream NewStream(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  cudaStream_t stream = nullptr;
  // The stream has no implicit order with the default stream, on which other libraries of the process may
  // work.
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(device));
}

}  // namespace

CudaStreams CudaStreams::Take(int device) {
  {
    FreeStreams& free = FreeStreams::Of();
    MutexLock lock(free.mutex);
    std::vector<CudaStreams>& streams = free.of_device[device];
    if (!streams.empty()) {
      const CudaStreams taken = streams.back();
      streams.pop_back();
      return taken;
    }
  }
  return {{NewStream(device), NewStream(device)}, NewStream(device), NewStream(device)};
}

void CudaStreams::Return(const CudaStreams& streams) {
  FreeStreams& free = FreeStreams::Of();
  MutexLock lock(free.mutex);
  free.of_device[streams.to_host.device_index()].push_back(streams);
}

}  // namespace weft
