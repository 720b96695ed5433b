// Holds the state of the GPU of the tests (fake_gpu.h). Private to its files.
#ifndef WEFT_TESTS_GPU_FAKE_GPU_STATE_H_
#define WEFT_TESTS_GPU_FAKE_GPU_STATE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace weft::testing {

struct Stream;

// The operations that captured work comes behind: how many of each captured stream.
using Behind = std::map<const Stream*, int>;

// One record of an event. A later record is another one.
struct Recorded {
  bool done = false;
  int64_t at_ns = 0;
  uint64_t capture = 0;  // capture in which it was recorded; 0: in none
  Behind behind;         // operations before it then
};

struct Operation {
  std::function<void()> work;       // null for a wait
  std::shared_ptr<Recorded> waits;  // goes on once this is done
};

struct Stream {
  std::deque<Operation> queue;
  uint64_t capture = 0;  // capture that it is in
};

// A graph that is being captured.
struct Capture {
  Stream* begun_on = nullptr;
  std::thread::id thread;
  cudaStreamCaptureMode mode{};
  bool invalid = false;
  std::map<const Stream*, Behind> streams;  // streams that are in it, and the operations that each is behind
  std::vector<std::function<void()>> work;
};

struct Event {
  bool timed = true;
  std::shared_ptr<Recorded> last;
};

struct Graph {
  std::vector<std::function<void()>> work;
};

class Gpu {
 public:
  static Gpu& Of() {
    static Gpu* const gpu = new Gpu;
    return *gpu;
  }

  // Does one operation of a random stream that may go on; returns false if there is none.
  bool Step() {
    std::vector<Stream*> able;
    for (Stream* s : streams) {
      if (s->queue.empty()) continue;
      const Operation& next = s->queue.front();
      if (next.waits == nullptr || next.waits->done) able.push_back(s);
    }
    if (able.empty()) return false;
    Stream* const stream = able[random() % able.size()];
    const Operation next = std::move(stream->queue.front());
    stream->queue.pop_front();
    now_ns += 1000;
    if (next.work != nullptr) next.work();
    return true;
  }

  void Drain(const std::function<bool()>& done) {
    while (!done()) {
      if (Step()) continue;
      std::fprintf(stderr, "fake GPU: a wait that can never end\n");
      std::abort();
    }
  }

  Mutex mutex;
  std::vector<Stream*> streams;
  Stream default_stream;
  std::mt19937 random{1};
  int64_t now_ns = 0;
  size_t memory = size_t{1} << 30, used = 0;
  std::map<void*, size_t> device, locked;
  std::map<uint64_t, Capture> captures;
  uint64_t last_capture = 0;
  cudaError_t broken = cudaSuccess;
  std::atomic<int> waits{0}, locks{0}, kernels{0}, graphs{0};

 private:
  Gpu() { streams.push_back(&default_stream); }
};

inline Stream* Of(cudaStream_t stream) {
  return stream == nullptr ? &Gpu::Of().default_stream : reinterpret_cast<Stream*>(stream);
}
inline Event* Of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

// Notes an error as the thread's last.
cudaError_t Remember(cudaError_t error);
cudaError_t Enqueued(cudaStream_t stream, std::function<void()> work);
cudaError_t LaunchedKernel(cudaStream_t stream);

// ---- Captures. Call all with the lock.

// Refuses a call that CUDA calls potentially unsafe: to a thread that captures, with its capture, and to all
// while one captures globally.
cudaError_t Unsafe(Gpu& gpu);
// Returns the stream's capture; null for a stream that is in none.
Capture* CaptureOf(Gpu& gpu, const Stream* stream);
// Checks a call about a stream that may be in a capture and its work so far.
cudaError_t NotInCapture(Gpu& gpu, const Stream* stream);
void AddTo(Capture& capture, const Stream* stream, std::function<void()> work);
// Handles a wait that has to do with a capture: for a captured event, or of a captured stream.
cudaError_t WaitInCapture(Gpu& gpu, Stream* stream, const Recorded& event);

}  // namespace weft::testing

#endif  // WEFT_TESTS_GPU_FAKE_GPU_STATE_H_
