// Declares a kind of device as a library brings it: the interface between a worker process and a GPU backend.
//
// The worker links the CPU alone. A device of another kind is a shared library `libweft_KIND.so` beside the
// program, which the worker loads (device_library.h) before anything touches LibTorch, because LibTorch
// remembers at its first use which devices there are. The library exports one C function,
// `weft_device_backend` (DeviceBackendEntry), and nothing else; both sides are built together, and the
// version that they exchange says so.
//
// No value that crosses may depend on hidden state of a library of which both have a copy, so only standard
// types, Status, Tensor and these interfaces cross. The backend lives as long as the process.
#ifndef WEFT_WORKER_SHELL_COMPUTE_DEVICE_BACKEND_H_
#define WEFT_WORKER_SHELL_COMPUTE_DEVICE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/memory/memory_source.h"

namespace weft {

class RankDevice;
class CommunicationLibrary;

struct DeviceOptions {
  int index = -1;          // index of the device on this machine; -1: `process` modulo how many there are
  int process = 0;         // number of this process on the machine, if it has one
  bool graphs = true;      // capture and replay passes
  bool mark_jobs = false;  // ranges for a profiler (NVTX)
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual const std::string& name() const = 0;  // "cuda:0"
  // Returns the id that tells one piece of hardware from every other one, on any machine, for processes that
  // share it. It is NVML's id.
  virtual const std::string& uuid() const = 0;

  // Prepares the calling thread. Call it on every thread that enqueues or moves the device's memory, before
  // it does; cheap when repeated.
  virtual void PrepareThread() = 0;

  // Makes a rank's device. `host` is memory for copies that other processes map (HostUse::kTransfer), and
  // outlives the rank.
  virtual absl::StatusOr<std::unique_ptr<RankDevice>> CreateRankDevice(Rank rank, MemorySource& host) = 0;

  // Returns the device's memory as segments for a transport to receive into, usable by all ranks of the
  // process.
  virtual MemorySource& memory() = 0;

  // Returns why the device does nothing more for this process, as after a kernel that failed: only another
  // process can use it again. OK while it works. Asked after failures, on a prepared thread; does not wait.
  virtual absl::Status Health() { return absl::OkStatus(); }

  // Returns collectives among devices (communicator.h); null where the device has none.
  virtual CommunicationLibrary* communication() = 0;
};

// Makes the backend. Unavailable: no driver, no such device, or one that does not fit, in a sentence.
using DeviceBackendEntry = absl::Status (*)(const char* version, const DeviceOptions& options,
                                            std::unique_ptr<DeviceBackend>* backend);
inline constexpr char kDeviceBackendEntry[] = "weft_device_backend";

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_DEVICE_BACKEND_H_
