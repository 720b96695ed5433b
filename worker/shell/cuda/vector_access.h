// Provides loads and stores of several numbers at once, and the launch of kernels, to the .cu files of this
// folder.
//
// A kernel moves 16 bytes an access, 8 of bfloat16's, where the pointers allow it: L is 4 there, and 1
// elsewhere.
#ifndef WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_
#define WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_

#include <cstdint>

// Launches a kernel. The unit test of this file runs the kernels on the host, and defines it otherwise.
#ifndef WEFT_LAUNCH
#define WEFT_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace weft::kernels {

template <int L>
struct alignas(sizeof(float) * L) Floats {
  float v[L];
};
template <int L>
__device__ __forceinline__ Floats<L> Load(const float* at) {
  return *reinterpret_cast<const Floats<L>*>(at);
}
template <int L>
__device__ __forceinline__ void Store(float* at, const Floats<L>& values) {
  *reinterpret_cast<Floats<L>*>(at) = values;
}

template <int L>
struct alignas(sizeof(uint16_t) * L) Halves {
  uint16_t v[L];
};
template <int L>
__device__ __forceinline__ Halves<L> Load(const uint16_t* at) {
  return *reinterpret_cast<const Halves<L>*>(at);
}
template <int L>
__device__ __forceinline__ void Store(uint16_t* at, const Halves<L>& values) {
  *reinterpret_cast<Halves<L>*>(at) = values;
}

inline bool Aligned(const void* pointer, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace weft::kernels

#endif  // WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_
