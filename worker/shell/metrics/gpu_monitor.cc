#include "worker/shell/metrics/gpu_monitor.h"

#include <dlfcn.h>

#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/threads.h"

namespace weft {
namespace {

// The used part of NVML's interface, which is stable: names, numbers and layouts are those of its header
// (NVML API reference guide, r580).
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kTemperatureOfGpu = 0;
constexpr int kClockOfMultiprocessors = 1, kClockOfMemory = 2;
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct ThrottleReason {
  unsigned long long bit;
  const char* name;
};
// The reasons for throttling, without those that it is idle, or that somebody chose its clocks.
constexpr ThrottleReason kThrottleReasons[] = {{0x4, "throttled_power_cap"},
                                               {0x8, "throttled_slowdown"},
                                               {0x20, "throttled_thermal"},
                                               {0x40, "throttled_hardware_thermal"},
                                               {0x80, "throttled_power_brake"}};

struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*device_by_uuid)(const char*, NvmlDevice*);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*power)(NvmlDevice, unsigned*);        // milliwatts
  int (*power_limit)(NvmlDevice, unsigned*);  // milliwatts
  int (*temperature)(NvmlDevice, int, unsigned*);
  int (*clock)(NvmlDevice, int, unsigned*);  // MHz
  int (*throttle_reasons)(NvmlDevice, unsigned long long*);

  // Finds the functions. Returns false if one is missing.
  bool Find(void* library) {
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(device_by_uuid, "nvmlDeviceGetHandleByUUID") &&
           find(utilization, "nvmlDeviceGetUtilizationRates") && find(memory, "nvmlDeviceGetMemoryInfo") &&
           find(power, "nvmlDeviceGetPowerUsage") && find(power_limit, "nvmlDeviceGetEnforcedPowerLimit") &&
           find(temperature, "nvmlDeviceGetTemperature") && find(clock, "nvmlDeviceGetClockInfo") &&
           find(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }
};

// A loaded library, closed after its users are gone.
struct Library {
  explicit Library(const char* name) : handle(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* const handle;
};

class NvmlMonitor final : public GpuMonitor {
 public:
  NvmlMonitor(std::unique_ptr<Library> library, const Nvml& nvml, NvmlDevice device)
      : library_(std::move(library)), nvml_(nvml), device_(device), latest_(Read()) {
    thread_ = StartThread([this] { Watch(); });
  }
  ~NvmlMonitor() override {
    {
      MutexLock lock(mu_);
      stop_ = true;
      wake_.Signal();
    }
    thread_.join();
    nvml_.shutdown();
  }

  GpuFigures Latest() override {
    MutexLock lock(mu_);
    return latest_;
  }

 private:
  static constexpr int64_t kInterval = 1'000'000'000;

  void Watch() {
    MutexLock lock(mu_);
    while (!stop_) {
      wake_.WaitWithTimeout(mu_, kInterval);
      if (stop_) return;
      mu_.Unlock();
      GpuFigures figures = Read();
      mu_.Lock();
      latest_ = std::move(figures);
    }
  }

  GpuFigures Read() const {
    GpuFigures figures;
    NvmlUtilization utilization{};
    if (nvml_.utilization(device_, &utilization) == kNvmlSuccess)
      figures["utilization"] = 0.01 * utilization.gpu;
    NvmlMemory memory{};
    if (nvml_.memory(device_, &memory) == kNvmlSuccess) {
      figures["memory_used_bytes"] = static_cast<double>(memory.used);
      figures["memory_total_bytes"] = static_cast<double>(memory.total);
    }
    unsigned value = 0;
    if (nvml_.power(device_, &value) == kNvmlSuccess) figures["power_watts"] = 1e-3 * value;
    if (nvml_.power_limit(device_, &value) == kNvmlSuccess) figures["power_limit_watts"] = 1e-3 * value;
    if (nvml_.temperature(device_, kTemperatureOfGpu, &value) == kNvmlSuccess)
      figures["temperature_celsius"] = value;
    if (nvml_.clock(device_, kClockOfMultiprocessors, &value) == kNvmlSuccess)
      figures["sm_clock_hertz"] = 1e6 * value;
    if (nvml_.clock(device_, kClockOfMemory, &value) == kNvmlSuccess)
      figures["memory_clock_hertz"] = 1e6 * value;
    unsigned long long reasons = 0;
    if (nvml_.throttle_reasons(device_, &reasons) == kNvmlSuccess) {
      for (const ThrottleReason& reason : kThrottleReasons)
        figures[reason.name] = (reasons & reason.bit) != 0 ? 1 : 0;
    }
    return figures;
  }

  const std::unique_ptr<Library> library_;
  const Nvml nvml_;
  NvmlDevice device_;
  Mutex mu_;
  CondVar wake_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  GpuFigures latest_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<GpuMonitor> GpuMonitor::Open(const std::string& uuid, const char* library_name) {
  auto library = std::make_unique<Library>(library_name);
  Nvml nvml;
  if (library->handle == nullptr || !nvml.Find(library->handle) || nvml.init() != kNvmlSuccess)
    return nullptr;
  NvmlDevice device = nullptr;
  if (nvml.device_by_uuid(uuid.c_str(), &device) != kNvmlSuccess) {
    nvml.shutdown();
    return nullptr;
  }
  return std::make_unique<NvmlMonitor>(std::move(library), nvml, device);
}

}  // namespace weft
