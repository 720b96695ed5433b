// Reads the state of the GPU from its driver through NVML: how busy, how warm, how fast, and what holds it
// back.
//
// The library is loaded when a monitor is opened; a machine without it has no monitor, and that is no error.
// A thread of the monitor reads the figures once a second, so that a reader waits for no driver. Figures that
// a GPU does not have are left out. Threads: Latest from any. Ownership: the monitor owns its thread and the
// library.
#ifndef WEFT_WORKER_SHELL_METRICS_GPU_MONITOR_H_
#define WEFT_WORKER_SHELL_METRICS_GPU_MONITOR_H_

#include <map>
#include <memory>
#include <string>

namespace weft {

// Figures by name: utilization (0..1 of the last sample of the driver), memory_used_bytes,
// memory_total_bytes, power_watts, power_limit_watts, temperature_celsius, sm_clock_hertz,
// memory_clock_hertz, and throttled_REASON (0 or 1).
using GpuFigures = std::map<std::string, double>;

class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;

  // Opens a monitor for the GPU with this uuid, as NVML and DeviceBackend::uuid have it. Null where there is
  // no NVML or no such GPU.
  static std::unique_ptr<GpuMonitor> Open(const std::string& uuid, const char* library = "libnvidia-ml.so.1");

  // Returns the latest figures; empty if the driver gave none.
  virtual GpuFigures Latest() = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_METRICS_GPU_MONITOR_H_
