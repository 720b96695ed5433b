// Fakes a GPU for tests: the CUDA runtime's memory, streams and events, done by the host when a test says so.
//
// Linking this puts its functions before those of the CUDA runtime for the whole process, LibTorch's caching
// allocator included. Work that is enqueued is done only in Run and where a caller waits, one operation at a
// time, of a stream drawn at random among those that may go on: so work without an order happens in every
// order. A kernel is launched and does nothing; the device's memory is the host's. Errors of the device come
// when a test says so, and then of every call.
//
// Captures are as strict as CUDA's: streams join by waiting for a captured event and must have come back
// where it ends; a capturing thread may make no call that CUDA calls potentially unsafe; a broken rule ends
// the capture as invalid. Copies must be between what they say they are between. Threads: any.
#ifndef WEFT_TESTS_GPU_FAKE_GPU_H_
#define WEFT_TESTS_GPU_FAKE_GPU_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace weft::testing {

struct FakeGpu {
  static void Seed(uint32_t seed);
  // Does `operations` at most of those that can be done; all by default. Returns how many it did.
  static int Run(int operations = 1 << 30);
  // Enqueues an operation on the stream.
  static void Enqueue(cudaStream_t stream, std::function<void()> work);
  // Returns the number of operations that the stream was given and has not done.
  static size_t Queued(cudaStream_t stream);
  // Sets the device memory that there is in all.
  static void SetMemory(size_t bytes);
  // Makes the device return this error from here on, as after a kernel that failed, and do nothing of its
  // work.
  static void Break(cudaError_t error);
  // Counts calls that waited for the device, or might have: synchronizing ones, and those that make or free
  // memory.
  static int waits();
  // Counts those of them that made page-locked host memory.
  static int locks();
  static void ResetWaits();  // locks as well
  // Count the kernels that were launched or captured, and the graphs that were launched, so far.
  static int kernels();
  static int graphs();
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_GPU_FAKE_GPU_H_
