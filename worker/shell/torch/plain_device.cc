#include "worker/shell/torch/plain_device.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/compute/host_math.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {
namespace {

// A job under way, which ends also where an exception passes.
class BegunJob {
 public:
  BegunJob(RankDevice& device, const Job& job) : device_(device) {
    device_.BeginJob(job, /*overlapped=*/false);
  }
  ~BegunJob() {
    if (!ended_) device_.EndJob();
  }
  std::shared_ptr<LaunchedJob> End() {
    ended_ = true;
    return device_.EndJob();
  }

 private:
  RankDevice& device_;
  bool ended_ = false;
};

absl::Status WaitFor(Fence& fence) {
  while (true) {
    const absl::StatusOr<bool> reached = fence.Reached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlainDevice>> PlainDevice::Create(DeviceBackend* backend) {
  std::unique_ptr<PlainDevice> plain(new PlainDevice);
  if (backend == nullptr) return plain;
  backend->PrepareThread();
  absl::StatusOr<std::unique_ptr<RankDevice>> device = backend->CreateRankDevice(0, plain->host_);
  if (!device.ok()) return device.status();
  plain->device_ = *std::move(device);
  return plain;
}

const FlatMath& PlainDevice::math() const { return device_ == nullptr ? HostMath() : device_->math(); }

Mutex& PlainDevice::generator_lock() const {
  return device_ == nullptr ? HostGeneratorLock() : device_->generator_lock();
}

at::TensorOptions PlainDevice::Options(c10::ScalarType type) const {
  const c10::Device cpu(c10::DeviceType::CPU);
  return at::TensorOptions().dtype(type).device(device_ == nullptr ? cpu : device_->torch_device());
}

absl::Status PlainDevice::Run(const Job& job, const std::function<absl::Status()>& work) {
  if (device_ == nullptr) return work();
  BegunJob begun(*device_, job);
  absl::Status status;
  {
    const auto charged = device_->Charge(MemoryClass::kBuffers);
    status = work();
  }
  const std::shared_ptr<LaunchedJob> launched = begun.End();
  if (!status.ok() || launched == nullptr) return status;
  return WaitFor(*launched);
}

absl::Status PlainDevice::Prepare(const Layer& layer, int64_t samples) {
  if (is_host()) return layer.Prepare(samples, c10::Device(c10::DeviceType::CPU));
  const auto charged = device_->Charge(MemoryClass::kWeights);
  return layer.Prepare(samples, device_->torch_device());
}

absl::StatusOr<at::Tensor> PlainDevice::ToDevice(const at::Tensor& host) {
  if (device_ == nullptr) return host;
  const auto charged = device_->Charge(MemoryClass::kBuffers);
  const at::Tensor from = host.contiguous();
  at::Tensor to = at::empty(from.sizes(), Options(from.scalar_type()));
  const absl::Status loaded = device_->Load(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  if (!loaded.ok()) return loaded;
  return to;
}

absl::StatusOr<at::Tensor> PlainDevice::ToHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  if (!tensor.is_contiguous())
    return absl::InternalError("what is read back from a device is not contiguous");
  at::Tensor to = at::empty(tensor.sizes(), tensor.options().device(c10::DeviceType::CPU));
  const absl::Status read =
      device_->ReadBack(to.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  if (!read.ok()) return read;
  return to;
}

absl::Status OnPlainDevice(const RunSpec& run, DeviceBackend* backend, absl::string_view what,
                           const std::function<absl::Status(PlainDevice&)>& work) {
  PrepareProcess();
  const absl::StatusOr<PreparedRun> prepared = PrepareRun(run);
  if (!prepared.ok()) return prepared.status();
  return OnPreparedDevice(backend, what, work);
}

absl::Status OnPreparedDevice(DeviceBackend* backend, absl::string_view what,
                              const std::function<absl::Status(PlainDevice&)>& work) {
  try {
    PrepareThread();
    const absl::StatusOr<std::unique_ptr<PlainDevice>> device = PlainDevice::Create(backend);
    return device.ok() ? work(**device) : device.status();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return TorchError(what, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, ": LibTorch: ", e.what()));
  }
}

}  // namespace weft
