#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "tests/conformance/fake_cuda.h"

namespace {

// A thread that does what it is given, in order.
class Stream {
 public:
  explicit Stream(int device) : device_(device), thread_([this] { Run(); }) {}
  ~Stream() {
    {
      weft::MutexLock lock(mu_);
      ending_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  void Append(std::function<void()> work) {
    weft::MutexLock lock(mu_);
    work_.push_back(std::move(work));
    changed_.SignalAll();
  }
  bool IsIdle() {
    weft::MutexLock lock(mu_);
    return !busy_ && work_.empty();
  }
  int device() const { return device_; }

 private:
  void Run() {
    weft::MutexLock lock(mu_);
    while (true) {
      while (work_.empty() && !ending_) changed_.Wait(mu_);
      if (work_.empty()) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      mu_.Unlock();
      work();
      mu_.Lock();
      busy_ = false;
      changed_.SignalAll();
    }
  }

  const int device_;
  weft::Mutex mu_;
  weft::CondVar changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, ending_ = false;
  std::thread thread_;
};

struct Event {
  int device;
  std::shared_ptr<std::atomic<bool>> reached = std::make_shared<std::atomic<bool>>(true);
};

// The last error, which the runtime keeps for each thread until it is asked for.
thread_local cudaError_t last_error = cudaSuccess;
// A thread that chose none has the first.
thread_local int current_device = 0;

cudaError_t Remember(cudaError_t error) { return last_error = error; }

Stream* Of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }
Event* Of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

}  // namespace

namespace weft::testing {

void EnqueueFake(cudaStream_t stream, std::function<void()> work) { Of(stream)->Append(std::move(work)); }
int FakeDeviceOf(cudaStream_t stream) { return Of(stream)->device(); }
int CurrentFakeDevice() { return current_device; }

}  // namespace weft::testing

extern "C" {

cudaError_t cudaSetDevice(int device) {
  if (device < 0) return Remember(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidDevice ? "invalid device ordinal" : "an error of the fake";
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream(current_device));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete Of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Of(stream)->IsIdle() ? cudaSuccess : Remember(cudaErrorNotReady);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{current_device});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (Of(event)->device != Of(stream)->device()) return Remember(cudaErrorInvalidResourceHandle);
  auto reached = std::make_shared<std::atomic<bool>>(false);
  Of(event)->reached = reached;
  Of(stream)->Append([reached] { *reached = true; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *Of(event)->reached ? cudaSuccess : Remember(cudaErrorNotReady);
}

}  // extern "C"
