#include "tests/conformance/devices.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "worker/shell/compute/device_backend.h"
#include "worker/shell/compute/device_library.h"

namespace weft::testing {
namespace {

absl::Status WaitUntilReached(Fence& fence) {
  for (;;) {
    const absl::StatusOr<bool> reached = fence.Reached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// A rank of a device with memory of its own: what is made is brought back, and each call is a job whose end
// is awaited.
class HostedRank final : public RankCompute {
 public:
  HostedRank(Device& device, std::unique_ptr<RankCompute> rank) : device_(device), rank_(std::move(rank)) {}

  absl::Status AddStage(int stage, const StageRole& role) override { return Here().AddStage(stage, role); }

  absl::Status BeginState(const Job& job) override {
    return InJob(job, [&](RankCompute& rank) { return rank.BeginState(job); });
  }
  absl::Status InstallState(const Job& job, Tensor state) override {
    return InJob(job, [&](RankCompute& rank) { return rank.InstallState(job, state); });
  }
  absl::StatusOr<Tensor> GiveState(const Job& job) override {
    return Back(InJob(job, [&](RankCompute& rank) { return rank.GiveState(job); }));
  }
  bool HasState(int stage) const override { return rank_->HasState(stage); }
  int64_t stage_elements(int stage) const override { return rank_->stage_elements(stage); }

  absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                       int version) override {
    return Back(InJob(job, [&](RankCompute& rank) { return rank.GatherWeights(job, slices, version); }));
  }
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version) override {
    return BackForward(InJob(job, [&](RankCompute& rank) {
      return rank.Forward(job, std::move(inputs), std::move(weights), version);
    }));
  }
  absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                            int version) override {
    return BackForward(InJob(job, [&](RankCompute& rank) {
      return rank.ForwardOnly(job, std::move(inputs), std::move(weights), version);
    }));
  }
  absl::Status TakePass(const Job& job, std::vector<Tensor> inputs) override {
    return InJob(job, [&](RankCompute& rank) { return rank.TakePass(job, std::move(inputs)); });
  }
  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                          Tensor weights, int version, bool hand_out) override {
    absl::StatusOr<BackwardResult> made = InJob(job, [&](RankCompute& rank) {
      return rank.Backward(job, std::move(output_gradients), std::move(weights), version, hand_out);
    });
    if (!made.ok()) return made;
    for (Tensor& gradient : made->input_gradients) {
      if (absl::Status s = BringBack(&gradient); !s.ok()) return s;
    }
    if (absl::Status s = BringBack(&made->gradient); !s.ok()) return s;
    return made;
  }

  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) override {
    return InJob(job,
                 [&](RankCompute& rank) { return rank.Accumulate(job, microbatch, slice, part, parts); });
  }
  absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) override {
    return Back(
        InJob(job, [&](RankCompute& rank) { return rank.AddToSum(job, before, std::move(gradient)); }));
  }
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) override {
    return Back(InJob(job, [&](RankCompute& rank) { return rank.TakeSum(job, part, parts); }));
  }
  absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                    const std::vector<Tensor>& others) override {
    return Back(
        InJob(job, [&](RankCompute& rank) { return rank.SumSquares(job, sum, part, parts, others); }));
  }
  absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                      bool keep) override {
    return InJob(job, [&](RankCompute& rank) { return rank.Update(job, sums, norm, keep); });
  }
  absl::Status InstallWeights(const Job& job, const Tensor& weights, bool keep) override {
    return InJob(job, [&](RankCompute& rank) { return rank.InstallWeights(job, weights, keep); });
  }

  absl::StatusOr<Tensor> Weights(int stage, int version) override {
    return Back(Here().Weights(stage, version));
  }
  void DropWeights(int stage, int version) override { Here().DropWeights(stage, version); }
  absl::Status Save(int stage, const std::string& folder) override { return Here().Save(stage, folder); }
  absl::Status BeginSave(int stage, const std::string& folder) override {
    return Here().BeginSave(stage, folder);
  }
  absl::Status SaveInitial(int stage, const std::string& folder) override {
    return Here().SaveInitial(stage, folder);
  }
  BytesByClass live_bytes() const override { return rank_->live_bytes(); }
  BytesByClass peak_bytes() const override { return rank_->peak_bytes(); }
  int64_t most_bytes() const override { return rank_->most_bytes(); }

 private:
  RankCompute& Here() {
    device_.PrepareThread();
    return *rank_;
  }

  template <typename F>
  auto InJob(const Job& job, F f) -> decltype(f(std::declval<RankCompute&>())) {
    RankCompute& rank = Here();
    rank.BeginJob(job, /*overlapped=*/jobs_++ > 0);
    auto result = f(rank);
    const std::shared_ptr<LaunchedJob> launched = rank.EndJob();
    --jobs_;
    absl::Status ended = launched == nullptr ? absl::OkStatus() : WaitUntilReached(*launched);
    if (!StatusOf(result).ok()) return result;
    if (!ended.ok()) return ended;
    TakeFigures(launched.get(), &result);
    return result;
  }
  template <typename T>
  static void TakeFigures(LaunchedJob*, T*) {}
  static void TakeFigures(LaunchedJob* launched, absl::StatusOr<ForwardResult>* result) {
    if (launched != nullptr) (*result)->loss = launched->figures().loss;
  }

  absl::Status BringBack(Tensor* tensor) {
    if (tensor->empty()) return absl::OkStatus();
    absl::StatusOr<Tensor> back = rank_->ToHost(std::exchange(*tensor, {}));
    if (!back.ok()) return back.status();
    if (back->ready != nullptr) {
      if (absl::Status s = WaitUntilReached(*back->ready); !s.ok()) return s;
      back->ready = nullptr;
    }
    *tensor = *std::move(back);
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Back(absl::StatusOr<Tensor> made) {
    if (!made.ok()) return made;
    if (absl::Status s = BringBack(&*made); !s.ok()) return s;
    return made;
  }
  absl::StatusOr<ForwardResult> BackForward(absl::StatusOr<ForwardResult> made) {
    if (!made.ok()) return made;
    if (absl::Status s = BringBack(&made->activation); !s.ok()) return s;
    return made;
  }

  Device& device_;
  const std::unique_ptr<RankCompute> rank_;
  std::atomic<int> jobs_{0};
};

class HostedDevice final : public Device {
 public:
  explicit HostedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  absl::string_view name() const override { return device_->name(); }
  void PrepareThread() override { device_->PrepareThread(); }
  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource& memory) override {
    device_->PrepareThread();
    absl::StatusOr<std::unique_ptr<RankCompute>> made = device_->CreateRank(run, rank, memory);
    if (!made.ok()) return made.status();
    return std::make_unique<HostedRank>(*device_, *std::move(made));
  }

 private:
  const std::unique_ptr<Device> device_;
};

// Made while parameters of tests are, which is before anything uses LibTorch.
class Devices final {
 public:
  static Devices& Instance() {
    // They stay: tensors may be dropped at the process's end.
    static Devices* const devices = new Devices;
    return *devices;
  }

  const std::vector<std::string>& own_memory() const { return own_memory_; }
  Device& device(const std::string& name) { return *devices_.at(name); }
  DeviceBackend* backend(const std::string& name) const {
    const auto found = backends_.find(name);
    return found == backends_.end() ? nullptr : found->second;
  }

 private:
  // LibTorch's autograd orders the work of one kind of accelerator a process, and takes a registered test
  // device for it. So the test device and a GPU are never loaded together.
  Devices() {
    const char* const name = std::getenv("WEFT_TEST_DEVICE");
    if (const absl::Status loaded = Load(name == nullptr ? "testgpu" : name); !loaded.ok()) {
      std::fprintf(stderr, "%s\n", std::string(loaded.message()).c_str());
      std::abort();
    }
    devices_["cpu"] = CreateCpuDevice();
  }

  absl::Status Load(const std::string& name) {
    DeviceSearch search = DefaultDeviceSearch();
    search.folders.insert(search.folders.begin(),
                          std::filesystem::read_symlink("/proc/self/exe").parent_path().string());
    DeviceOptions options;
    options.graphs = false;
    absl::StatusOr<LoadedDevice> loaded = LoadDevice({name}, options, search);
    if (!loaded.ok()) return loaded.status();
    backends_[name] = loaded->backend.get();
    devices_[name] = std::make_unique<HostedDevice>(CreateTorchDevice(std::move(loaded->backend)));
    own_memory_.push_back(name);
    return absl::OkStatus();
  }

  std::map<std::string, std::unique_ptr<Device>> devices_;
  std::map<std::string, DeviceBackend*> backends_;  // of devices_
  std::vector<std::string> own_memory_;
};

}  // namespace

std::vector<std::string> OwnMemoryDevices() { return Devices::Instance().own_memory(); }

Device& DeviceNamed(const std::string& name) { return Devices::Instance().device(name); }

bool TakesBytesAsAsked(const std::string& name) { return name != "cuda"; }

DeviceBackend* ReferenceOf(const std::string& name) {
  return name == "testgpu" ? nullptr : BackendNamed(name);
}

DeviceBackend* BackendNamed(const std::string& name) { return Devices::Instance().backend(name); }

}  // namespace weft::testing
