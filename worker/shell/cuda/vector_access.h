// Provides loads and stores of several numbers at once, and the launch of kernels, to the .cu files of this
// folder.
//
// A kernel moves 16 bytes an access, 8 of bfloat16's, where the pointers allow it: L is 4 there, and 1
// elsewhere.
#ifndef WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_
#define WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_

#include <cstdint>

// Launches a kernel. The unit tests run the kernels on the host, and define it otherwise.
#ifndef WEFT_LAUNCH
#define WEFT_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace weft::kernels {

template <typename Number, int L>
struct alignas(sizeof(Number) * L) Group {
  Number v[L];
};
template <int L>
using Floats = Group<float, L>;
template <int L>
using Halves = Group<uint16_t, L>;  // bfloat16's bits

template <int L, typename Number>
__device__ __forceinline__ Group<Number, L> Load(const Number* at) {
  return *reinterpret_cast<const Group<Number, L>*>(at);
}
template <int L, typename Number>
__device__ __forceinline__ void Store(Number* at, const Group<Number, L>& values) {
  *reinterpret_cast<Group<Number, L>*>(at) = values;
}

inline bool Aligned(const void* pointer, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace weft::kernels

#endif  // WEFT_WORKER_SHELL_CUDA_VECTOR_ACCESS_H_
