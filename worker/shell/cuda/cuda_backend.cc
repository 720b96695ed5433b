#include "worker/shell/cuda/cuda_backend.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/cuda/cuda_event.h"
#include "worker/shell/cuda/cuda_job.h"
#include "worker/shell/cuda/cuda_memory.h"
#include "worker/shell/cuda/cuda_rank_device.h"
#include "worker/shell/cuda/cuda_status.h"
#include "worker/shell/cuda/cuda_streams.h"
#include "worker/shell/cuda/nccl_communicator.h"
#include "worker/shell/cuda/pinned_memory.h"

namespace weft {
namespace {

constexpr int kLeastCapability = 80;  // least capability of the kernels in this library, and with bfloat16

// Returns "CUDA 13.0" for 13000.
std::string Release(int version) {
  return absl::StrFormat("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

absl::Status ChooseDevice(const DeviceOptions& options, int* index) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        "there is no NVIDIA driver in this process (libcuda.so.1 is not here or cannot be used); install the "
        "driver, or give a container its GPU");
  }
  if (driver < CUDART_VERSION / 1000 * 1000) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver is of ", Release(driver), ", and this program needs ",
                     Release(CUDART_VERSION / 1000 * 1000), " at least; install a newer driver"));
  }
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("the CUDA runtime cannot use the GPUs of this machine: ", cudaGetErrorString(error),
                     " (", cudaGetErrorName(error), ")"));
  }
  if (count == 0)
    return absl::UnavailableError("there is no GPU that this process may use (CUDA_VISIBLE_DEVICES)");
  *index = options.index >= 0 ? options.index : options.process % count;
  if (*index < count) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("there is no device cuda:", *index, ": this process may use ",
                                             count, ", cuda:0 to cuda:", count - 1));
}

absl::Status CheckCapability(int index, const cudaDeviceProp& gpu) {
  if (gpu.major * 10 + gpu.minor >= kLeastCapability) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("cuda:%d is %s of compute capability %d.%d, and this program needs %d.%d or later "
                      "(Ampere and what came after)",
                      index, gpu.name, gpu.major, gpu.minor, kLeastCapability / 10, kLeastCapability % 10));
}

// Returns the uuid as NVML and nvidia-smi write it.
std::string UuidOf(const cudaDeviceProp& gpu) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(gpu.uuid.bytes[i]));
  }
  return text;
}

// Makes collectives, which know nothing of LibTorch, wait on the GPU for the work that ranks have given it.
[[maybe_unused]] bool WaitOnStream(void* stream, Fence& fence) {
  const std::shared_ptr<CudaFence> at = PointOf(fence);
  return at != nullptr && cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), at->event(),
                                              cudaEventWaitDefault) == cudaSuccess;
}

// Returns null if the library was built without NCCL.
std::unique_ptr<CommunicationLibrary> NewCommunicationLibrary(int index) {
#ifdef WEFT_HAS_NCCL
  return CreateNcclLibrary(index, &WaitOnStream);
#else
  return nullptr;
#endif
}

class CudaBackend final : public DeviceBackend {
 public:
  // c10::Error.
  CudaBackend(const DeviceOptions& options, int index, std::string uuid)
      : options_(options),
        index_(index),
        name_(absl::StrCat("cuda:", index)),
        uuid_(std::move(uuid)),
        segments_(index),
        slots_(std::make_shared<FigureSlots>(index)),
        communication_(NewCommunicationLibrary(index)) {
    const CudaStreams streams = CudaStreams::Take(index);
    clock_ = std::make_shared<CudaClock>(streams.to_host);
    CudaStreams::Return(streams);
  }

  const std::string& name() const override { return name_; }
  const std::string& uuid() const override { return uuid_; }

  void PrepareThread() override {
    // The runtime names the first device to a thread that has chosen none, and has no context current there.
    // Callers of the driver itself, as UCX, need one. Choosing makes it current.
    thread_local bool chosen = false;
    int current = -1;
    if (chosen && cudaGetDevice(&current) == cudaSuccess && current == index_) return;
    // A device that cannot be set now fails with a name where it is used.
    chosen = cudaSetDevice(index_) == cudaSuccess;
    if (!chosen) (void)cudaGetLastError();
  }

  absl::StatusOr<std::unique_ptr<RankDevice>> CreateRankDevice(Rank rank, MemorySource& host) override {
    try {
      PrepareThread();
      if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
      const CudaRankDevice::Options options{index_, rank, options_.graphs, options_.mark_jobs};
      return std::make_unique<CudaRankDevice>(options, host, clock_, slots_);
    } catch (const c10::Error& e) {
      return absl::InternalError(
          absl::StrCat(name_, ": preparing rank ", rank, ": ", e.what_without_backtrace()));
    }
  }

  // Returns the device's state. After a kernel that failed, the context returns that same error to every
  // call, for as long as the process lives.
  absl::Status Health() override {
    PrepareThread();
    (void)cudaGetLastError();
    const cudaError_t answer = Asked(cudaStreamQuery(cudaStreamLegacy));
    if (answer == cudaSuccess || answer == cudaErrorNotReady) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the GPU does nothing more for this process, and another one can use it: ",
                     CudaStatus(answer, index_, "asking").message()));
  }

  MemorySource& memory() override { return segments_; }
  CommunicationLibrary* communication() override { return communication_.get(); }

 private:
  // Fails if a kernel has failed: after that every call of the process fails, for good.
  absl::Status CheckUsable() const {
    size_t free = 0, total = 0;
    const cudaError_t error = cudaMemGetInfo(&free, &total);
    if (error == cudaSuccess) return absl::OkStatus();
    return CudaStatus(
        error, index_,
        "this process cannot use the GPU; if work on the GPU failed before, start the worker again");
  }

  const DeviceOptions options_;
  const int index_;
  const std::string name_, uuid_;
  DeviceSegments segments_;
  const std::shared_ptr<FigureSlots> slots_;
  std::shared_ptr<CudaClock> clock_;
  const std::unique_ptr<CommunicationLibrary> communication_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> CreateCudaBackend(const DeviceOptions& options) {
  int index = 0;
  if (absl::Status chosen = ChooseDevice(options, &index); !chosen.ok()) return chosen;
  cudaDeviceProp gpu{};
  if (const cudaError_t error = cudaGetDeviceProperties(&gpu, index); error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("cuda:", index, " cannot be used: ", cudaGetErrorString(error)));
  }
  if (absl::Status fits = CheckCapability(index, gpu); !fits.ok()) return fits;
  // cuBLAS reads this when it is first used: with one workspace of fixed size a stream its sums have one
  // order.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  try {
    if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
      (void)cudaGetLastError();
      return absl::UnavailableError(
          absl::StrCat("cuda:", index, " cannot be used: ", cudaGetErrorString(error)));
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);
    if (c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::expandable_segments()) {
      return absl::UnavailableError(
          "PYTORCH_CUDA_ALLOC_CONF asks for expandable_segments, whose memory other processes cannot map; "
          "leave it "
          "out");
    }
    InstallCudaTracker();
    return std::make_unique<CudaBackend>(options, index, UuidOf(gpu));
  } catch (const c10::Error& e) {
    return absl::UnavailableError(
        absl::StrCat("cuda:", index, " cannot be used: ", e.what_without_backtrace()));
  }
}

}  // namespace weft
