// cuBLAS of the tests: a product is a kernel on the current stream, and kernels do nothing (fake_gpu.h). Only
// what LibTorch calls for products of float32 and bfloat16; of their many arguments none is looked at.
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "tests/gpu/fake_gpu_state.h"

namespace {

int Product() {
  return weft::testing::LaunchedKernel(c10::cuda::getCurrentCUDAStream().stream()) == cudaSuccess ? 0 : 14;
}

// The start of cublasLtMatmulHeuristicResult_t is of no matter; zeros are an algorithm that serves.
constexpr size_t kHeuristicBytes = 96;

}  // namespace

extern "C" {

int cublasSgemm_v2() { return Product(); }
int cublasGemmEx() { return Product(); }
int cublasSgemmEx() { return Product(); }
int cublasSgemmStridedBatched() { return Product(); }
int cublasGemmStridedBatchedEx() { return Product(); }
int cublasLtMatmul() { return Product(); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results,
                                   int* count) {
  std::memset(results, 0, kHeuristicBytes);
  *count = 1;
  return 0;
}
int cublasSetStream_v2() { return 0; }
int cublasSetWorkspace_v2() { return 0; }
int cublasSetMathMode() { return 0; }
int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
int cublasSetPointerMode_v2() { return 0; }
int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}

}  // extern "C"
