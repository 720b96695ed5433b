#include "tests/gpu/count_waits.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace weft::testing {
namespace {

thread_local CountWaits* counting = nullptr;

// The runtime's own function of that name.
template <typename Function>
Function* Next(const char* name) {
  void* const function = dlsym(RTLD_NEXT, name);
  if (function == nullptr) {
    std::fprintf(stderr, "the CUDA runtime has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

bool IsPageable(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) return true;
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

CountWaits::CountWaits() { counting = this; }
CountWaits::~CountWaits() { counting = nullptr; }
void CountWaits::Note(const char* call) {
  if (counting != nullptr) ++counting->calls_[call];
}

}  // namespace weft::testing

using weft::testing::CountWaits;

#define WEFT_COUNTED(name, parameters, ...)                               \
  cudaError_t name parameters {                                           \
    static auto* const next = weft::testing::Next<decltype(name)>(#name); \
    CountWaits::Note(#name);                                              \
    return next(__VA_ARGS__);                                             \
  }

extern "C" {

WEFT_COUNTED(cudaDeviceSynchronize, (), )
WEFT_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), stream)
WEFT_COUNTED(cudaEventSynchronize, (cudaEvent_t event), event)
WEFT_COUNTED(cudaMemcpy, (void* to, const void* from, size_t n, cudaMemcpyKind kind), to, from, n, kind)
WEFT_COUNTED(cudaMemset, (void* to, int value, size_t n), to, value, n)
WEFT_COUNTED(cudaMalloc, (void** memory, size_t n), memory, n)
WEFT_COUNTED(cudaFree, (void* memory), memory)
WEFT_COUNTED(cudaHostAlloc, (void** memory, size_t n, unsigned int flags), memory, n, flags)
WEFT_COUNTED(cudaFreeHost, (void* memory), memory)
WEFT_COUNTED(cudaHostRegister, (void* memory, size_t n, unsigned int flags), memory, n, flags)
WEFT_COUNTED(cudaHostUnregister, (void* memory), memory)
WEFT_COUNTED(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags), stream, flags)
WEFT_COUNTED(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), event, flags)
WEFT_COUNTED(cudaEventDestroy, (cudaEvent_t event), event)

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  static auto* const next = weft::testing::Next<decltype(cudaMemcpyAsync)>("cudaMemcpyAsync");
  const bool to_host = kind == cudaMemcpyDeviceToHost, from_host = kind == cudaMemcpyHostToDevice;
  if ((to_host && weft::testing::IsPageable(to)) || (from_host && weft::testing::IsPageable(from))) {
    CountWaits::Note("cudaMemcpyAsync of pageable memory");
  }
  return next(to, from, n, kind, stream);
}

}  // extern "C"
