// The library's entry: the test device as a backend.
//
// Environment, all optional:
//   WEFT_TESTGPU_DELAY_US   copies and ends of jobs come up to so much later (200)
//   WEFT_TESTGPU_MEMORY     bytes that the device has (no limit)
//   WEFT_TESTGPU_FAIL_ALLOCATION=n, WEFT_TESTGPU_FAIL_JOB=n
//                           the n-th allocation of the process has no memory; its n-th job is a kernel error
//   WEFT_TESTGPU_DEADLY_JOB=words  the process dies at the end of this job, "forward (step 3, stage 1, ..)"
//   WEFT_TESTGPU_NAN_FILE=path  the loss of the forward whose words are in the file is nan, once for all
//                           processes: the file goes with it. On any device
//   WEFT_TESTGPU_HANG_FILE=path, WEFT_TESTGPU_LOST_FILE=path
//                           likewise: the device hangs in the job of the file (with a second line, for so
//                           many seconds), or is lost in it for good
//   WEFT_TESTGPU_FAIL_DEVICE=i  these three on device i alone
//   WEFT_TESTGPU_ARITHMETIC how it computes (other_arithmetic.h): its bits are not the CPU's then (cpu)
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/testgpu/device_memory.h"
#include "tests/testgpu/other_arithmetic.h"
#include "tests/testgpu/testgpu_rank.h"
#include "tests/testgpu/thread_state.h"
#include "tests/testgpu/torch_device.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_version.h"
#include "worker/shell/compute/host_math.h"

namespace weft::testgpu {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) return otherwise;
  return value;
}

// The device's memory in segments, for callers that can use it.
class SegmentsOfDevice final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    constexpr size_t kPage = 4096;
    absl::StatusOr<void*> block = AllocateHere(bytes + kPage);
    if (!block.ok()) return block.status();
    char* const first = static_cast<char*>(*block);
    void* const begin = first + (kPage - reinterpret_cast<uintptr_t>(first) % kPage) % kPage;
    std::lock_guard lock(mutex_);
    blocks_[begin] = first;
    return begin;
  }
  void Free(void* segment, size_t) override {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(segment);
    if (found == blocks_.end()) std::abort();
    DeviceMemory::Free(found->second);
    blocks_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<void*, void*> blocks_;
};

class Backend final : public DeviceBackend {
 public:
  Backend(int index, Arithmetic arithmetic)
      : index_(index),
        arithmetic_(arithmetic),
        name_(absl::StrCat("testgpu:", index)),
        uuid_(absl::StrFormat("GPU-7e57-%04d", index)),
        delay_us_(static_cast<int>(FromEnvironment("WEFT_TESTGPU_DELAY_US", 200))) {
    const int64_t failing = FromEnvironment("WEFT_TESTGPU_FAIL_DEVICE", index);
    int64_t allocation = 0;
    if (failing == index) {
      allocation = FromEnvironment("WEFT_TESTGPU_FAIL_ALLOCATION", 0);
      injection_.failing_job = FromEnvironment("WEFT_TESTGPU_FAIL_JOB", 0);
      if (const char* const deadly = std::getenv("WEFT_TESTGPU_DEADLY_JOB")) injection_.deadly_job = deadly;
    }
    if (const char* const path = std::getenv("WEFT_TESTGPU_NAN_FILE")) injection_.nan_file = path;
    if (const char* const path = std::getenv("WEFT_TESTGPU_HANG_FILE")) injection_.hang_file = path;
    if (const char* const path = std::getenv("WEFT_TESTGPU_LOST_FILE")) injection_.lost_file = path;
    DeviceMemory::Instance().Restrict(FromEnvironment("WEFT_TESTGPU_MEMORY", 0), allocation);
  }

  const std::string& name() const override { return name_; }
  const std::string& uuid() const override { return uuid_; }
  void PrepareThread() override {
    CurrentThread().prepared = true;
    CurrentThread().device = index_;
    CurrentThread().arithmetic = arithmetic_;
  }
  absl::StatusOr<std::unique_ptr<RankDevice>> CreateRankDevice(Rank rank, MemorySource& host) override {
    PrepareThread();
    return std::make_unique<TestRank>(TestRank::Options{rank, index_, delay_us_, &injection_}, HostMath(),
                                      host);
  }
  absl::Status Health() override {
    return injection_.lost ? absl::ResourceExhaustedError(name_ + " is lost to this process")
                           : absl::OkStatus();
  }
  MemorySource& memory() override { return memory_; }
  CommunicationLibrary* communication() override { return nullptr; }

 private:
  const int index_;
  const Arithmetic arithmetic_;
  const std::string name_, uuid_;
  const int delay_us_;
  Injection injection_;
  SegmentsOfDevice memory_;
};

}  // namespace
}  // namespace weft::testgpu

extern "C" __attribute__((visibility("default"))) absl::Status weft_device_backend(
    const char* version, const weft::DeviceOptions& options, std::unique_ptr<weft::DeviceBackend>* backend) {
  if (absl::Status s = weft::CheckDeviceVersion(version); !s.ok()) return s;
  const int index = options.index < 0 ? options.process % weft::testgpu::kDevices : options.index;
  if (index >= weft::testgpu::kDevices) {
    return absl::UnavailableError(
        absl::StrFormat("there is no device testgpu:%d, there are %d", index, weft::testgpu::kDevices));
  }
  const char* const named = std::getenv("WEFT_TESTGPU_ARITHMETIC");
  const auto arithmetic = weft::testgpu::ParseArithmetic(named == nullptr ? "cpu" : named);
  if (!arithmetic.has_value()) {
    return absl::UnavailableError(absl::StrCat("WEFT_TESTGPU_ARITHMETIC names no arithmetic: ", named));
  }
  weft::testgpu::RegisterTorchDevice();
  *backend = std::make_unique<weft::testgpu::Backend>(index, *arithmetic);
  return absl::OkStatus();
}
