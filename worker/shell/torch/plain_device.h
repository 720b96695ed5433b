// Provides one device for a plain loop that computes and waits: the reference's training, and evaluation.
//
// A loop on another device than the CPU enqueues its work in jobs, as a rank does, and here each job is
// waited for. Private to the adapter of LibTorch. One thread. Failure: of the device, with its words;
// LibTorch's exceptions pass.
#ifndef WEFT_WORKER_SHELL_TORCH_PLAIN_DEVICE_H_
#define WEFT_WORKER_SHELL_TORCH_PLAIN_DEVICE_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "run/run_spec.h"
#include "schedules/job.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/flat_math.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

class PlainDevice {
 public:
  // Makes the device; the CPU's for null. `backend` outlives this.
  static absl::StatusOr<std::unique_ptr<PlainDevice>> Create(DeviceBackend* backend);

  const FlatMath& math() const;
  Mutex& generator_lock() const;  // as RankDevice's
  bool is_host() const { return device_ == nullptr; }
  at::TensorOptions Options(c10::ScalarType type) const;

  // Runs `work` and waits for all that it enqueues. `job` names it.
  absl::Status Run(const Job& job, const std::function<absl::Status()>& work);

  // Makes what forwards of so many samples need (Layer::Prepare), outside of jobs.
  absl::Status Prepare(const Layer& layer, int64_t samples);

  // Copy, outside of jobs; return the tensor itself where it is there already. The result is contiguous.
  absl::StatusOr<at::Tensor> ToDevice(const at::Tensor& host);
  absl::StatusOr<at::Tensor> ToHost(const at::Tensor& tensor);

 private:
  PlainDevice() = default;

  PlainMemory host_;
  std::unique_ptr<RankDevice> device_;  // null for the CPU
};

// Prepares this process and thread for the run, and calls `work` with a device of `backend`. LibTorch's
// exceptions become a failure that begins with `what`, as in "evaluation".
absl::Status OnPlainDevice(const RunSpec& run, DeviceBackend* backend, absl::string_view what,
                           const std::function<absl::Status(PlainDevice&)>& work);

// Does the same in a process whose ranks have prepared it for their run; prepares the thread alone.
absl::Status OnPreparedDevice(DeviceBackend* backend, absl::string_view what,
                              const std::function<absl::Status(PlainDevice&)>& work);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PLAIN_DEVICE_H_
