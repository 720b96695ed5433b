#include "tests/unit/launching_device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

thread_local const LaunchingDevice* prepared = nullptr;

using Work = DeviceQueue::Work;

}  // namespace

class LaunchingRank final : public RankCompute {
 public:
  LaunchingRank(LaunchingDevice* device, Rank rank) : device_(*device), queue_(device->queue), rank_(rank) {}
  ~LaunchingRank() override {
    while (device_.hold_ends_) {
      device_.holds_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!queue_.Unfinished(rank_).empty()) queue_.Problem("a rank goes while the device computes for it");
    MutexLock lock(device_.mu_);
    --device_.ranks_;
  }

  void BeginJob(const Job& job, bool overlapped) override {
    while (device_.hold_at_ == job) {
      device_.holds_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    current = {};
    current.rank = rank_;
    current.job = job;
    MutexLock lock(mu_);
    if (overlapped) {
      current.after = behind_companion_;
    } else {
      current.after = behind_companion_ = queue_.Unfinished(rank_);
    }
  }
  std::shared_ptr<LaunchedJob> EndJob() override {
    std::shared_ptr<Work> work = queue_.Give(std::exchange(current, {}));
    MutexLock lock(mu_);
    // The halves of a backward beside one forward follow each other.
    behind_companion_.push_back(work);
    return work;
  }

  absl::StatusOr<Tensor> ToHost(Tensor tensor) override {
    if (tensor.place == MemoryPlace::kHost) return tensor;
    return Copy(tensor, MemoryPlace::kHost);
  }

  absl::Status AddStage(int stage, const StageRole& role) override {
    if (role.parts > 1) return absl::UnimplementedError("slices");
    if (role.sums_own) return absl::UnimplementedError("sums for collectives");
    if (!role.holds()) return absl::OkStatus();
    Tensor weights = queue_.NewTensor(MemoryPlace::kDevice);
    DeviceQueue::Write(weights.data, InitialWeights(stage));
    MutexLock lock(mu_);
    weights_[stage][0] = weights;
    return absl::OkStatus();
  }
  absl::Status BeginState(const Job&) override { return absl::UnimplementedError("state"); }
  absl::Status InstallState(const Job&, Tensor) override { return absl::UnimplementedError("state"); }
  absl::StatusOr<Tensor> GiveState(const Job&) override { return absl::UnimplementedError("state"); }
  bool HasState(int) const override { return false; }
  int64_t stage_elements(int) const override { return 16; }
  absl::StatusOr<Tensor> GatherWeights(const Job&, const std::vector<Tensor>&, int) override {
    return absl::UnimplementedError("slices");
  }

  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version) override {
    const Tensor out = queue_.NewTensor(MemoryPlace::kDevice);
    for (Tensor& input : inputs) input = Here(input);
    const std::vector<Value*> from = Use(inputs);
    Value* const with = Use(weights.empty() ? HeldWeights(job.stage, version) : weights);
    Do({out}, [this, job, from, with, to = out.data] {
      DeviceQueue::Write(to, ForwardValue(job, Joined(ReadAll(from), job.step), queue_.Read(with)));
    });
    MutexLock lock(mu_);
    outputs_[job] = out;
    // The backward reads them again, and drops them when it is launched.
    inputs_[job] = std::move(inputs);
    ForwardResult result;
    result.activation_bytes = static_cast<int64_t>(out.bytes);
    if (job.stage + 1 < device_.graph_->schedule().stages) {
      result.activation = out;
    } else {
      current.loss = 0.5;
    }
    return result;
  }
  absl::StatusOr<ForwardResult> ForwardOnly(const Job&, std::vector<Tensor>, Tensor, int) override {
    return absl::UnimplementedError("remote backward");
  }
  absl::Status TakePass(const Job&, std::vector<Tensor>) override {
    return absl::UnimplementedError("remote backward");
  }

  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                          Tensor weights, int version, bool hand_out) override {
    BackwardResult result;
    Tensor input_gradient;
    if (job.kind == JobKind::kBackwardWeight) {
      MutexLock lock(mu_);
      input_gradient = half_[{job.step, job.stage, job.microbatch}];
      half_.erase({job.step, job.stage, job.microbatch});
    } else {
      input_gradient = InputGradient(job, output_gradients, weights, version);
      if (job.stage > 0) result.input_gradients.push_back(input_gradient);
    }
    if (job.kind == JobKind::kBackwardInput) {
      MutexLock lock(mu_);
      half_[{job.step, job.stage, job.microbatch}] = input_gradient;
      return result;
    }
    // The forward's inputs are read once more.
    const std::vector<Value*> again = Use(TakeInputs(job));
    const int parts = hand_out ? static_cast<int>(device_.graph_->members(job.stage).size()) : 1;
    const Tensor gradient = queue_.NewTensor(MemoryPlace::kDevice, 8 * parts);
    Do({gradient}, [this, again, parts, from = Use(input_gradient), to = gradient.data] {
      ReadAll(again);
      const Value whole = GradientValue(queue_.Read(from));
      for (int part = 0; part < parts; ++part)
        DeviceQueue::Write(static_cast<Value*>(to) + 8 * part, SliceValue(whole, part, parts));
    });
    if (hand_out) {
      result.gradient = gradient;
    } else {
      MutexLock lock(mu_);
      held_[{job.step, job.stage}][job.microbatch] = gradient;
    }
    return result;
  }

  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int) override {
    const Tensor before = microbatch == 0 ? Tensor{} : sums_[{job.stage, part}];
    const Tensor sum = queue_.NewTensor(MemoryPlace::kDevice);
    Do({sum}, [this, old = before.empty() ? nullptr : Use(before), from = Use(slice), to = sum.data] {
      DeviceQueue::Write(to, Mix(old == nullptr ? 0 : queue_.Read(old), queue_.Read(from)));
    });
    sums_[{job.stage, part}] = sum;
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> AddToSum(const Job&, const Tensor&, Tensor) override {
    return absl::UnimplementedError("relay");
  }
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int) override {
    return std::exchange(sums_[{job.stage, part}], {});
  }
  absl::StatusOr<Tensor> SumSquares(const Job&, const Tensor&, int, int,
                                    const std::vector<Tensor>&) override {
    return absl::UnimplementedError("norm");
  }

  absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor&, bool keep) override {
    std::vector<Value*> from = Use(sums), held;
    if (sums.empty()) {
      MutexLock lock(mu_);
      for (const auto& [microbatch, gradient] : held_[{job.step, job.stage}]) held.push_back(Use(gradient));
      held_.erase({job.step, job.stage});
    }
    const Tensor next = queue_.NewTensor(MemoryPlace::kDevice);
    Do({next}, [this, from, held, with = Use(HeldWeights(job.stage, job.step)), to = next.data] {
      std::vector<Value> used = ReadAll(from);
      if (used.empty()) {
        used.push_back(0);
        for (const Value gradient : ReadAll(held)) used[0] = Mix(used[0], gradient);
      }
      DeviceQueue::Write(to, Updated(queue_.Read(with), used));
    });
    SetWeights(job, next, keep);
    return absl::OkStatus();
  }
  absl::Status InstallWeights(const Job& job, const Tensor& weights, bool keep) override {
    const Tensor next = queue_.NewTensor(MemoryPlace::kDevice);
    Do({next}, [this, from = Use(weights), to = next.data] { DeviceQueue::Write(to, queue_.Read(from)); });
    SetWeights(job, next, keep);
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> Weights(int stage, int version) override { return HeldWeights(stage, version); }
  void DropWeights(int stage, int version) override {
    MutexLock lock(mu_);
    if (weights_[stage].erase(version) == 0) queue_.Problem("weights are dropped that are not there");
  }
  absl::Status Save(int stage, const std::string&) override {
    if (!queue_.Unfinished(rank_).empty()) queue_.Problem("a rank is saved while the device computes for it");
    MutexLock lock(mu_);
    const auto& [version, weights] = *weights_[stage].rbegin();
    MutexLock saving(device_.mu_);
    device_.saved_[{rank_, stage}] = {version, queue_.Read(weights.data)};
    return absl::OkStatus();
  }
  absl::Status SaveInitial(int, const std::string&) override { return absl::OkStatus(); }
  BytesByClass live_bytes() const override { return {}; }
  BytesByClass peak_bytes() const override { return {}; }
  int64_t most_bytes() const override { return 0; }

 private:
  // The job under way on this thread.
  static thread_local DeviceQueue::Order current;

  Tensor Here(const Tensor& tensor) {
    return tensor.place == MemoryPlace::kDevice ? tensor : Copy(tensor, MemoryPlace::kDevice);
  }
  // Puts the job's work behind the tensor's fence, and keeps the tensor until it is done.
  Value* Use(const Tensor& given) {
    if (prepared != &device_) queue_.Problem("a thread that was not prepared uses the device");
    const Tensor tensor = Here(given);
    if (tensor.ready != nullptr) current.after.push_back(std::static_pointer_cast<Work>(tensor.ready));
    current.kept.push_back(tensor);
    return static_cast<Value*>(tensor.data);
  }
  std::vector<Value*> Use(const std::vector<Tensor>& tensors) {
    std::vector<Value*> used;
    for (const Tensor& tensor : tensors) used.push_back(Use(tensor));
    return used;
  }
  void Do(const std::vector<Tensor>& made, std::function<void()> action) {
    for (const Tensor& tensor : made) current.kept.push_back(tensor);
    current.actions.push_back(std::move(action));
  }
  std::vector<Value> ReadAll(const std::vector<Value*>& from) {
    std::vector<Value> values;
    for (const Value* data : from) values.push_back(queue_.Read(data));
    return values;
  }

  Tensor InputGradient(const Job& job, const std::vector<Tensor>& output_gradients, const Tensor& weights,
                       int version) {
    Job forward = job;
    forward.kind = JobKind::kForward;
    Tensor output;
    {
      MutexLock lock(mu_);
      output = outputs_[forward];
      outputs_.erase(forward);
    }
    Tensor made = queue_.NewTensor(MemoryPlace::kDevice);
    Do({made}, [this, job, from = Use(output_gradients), of = Use(output), to = made.data,
                with = Use(weights.empty() ? HeldWeights(job.stage, version) : weights)] {
      DeviceQueue::Write(
          to, InputGradientValue(job, queue_.Read(of), Joined(ReadAll(from), 0), queue_.Read(with)));
    });
    return made;
  }
  std::vector<Tensor> TakeInputs(Job job) {
    job.kind = JobKind::kForward;
    MutexLock lock(mu_);
    std::vector<Tensor> inputs = std::move(inputs_[job]);
    inputs_.erase(job);
    return inputs;
  }

  Tensor HeldWeights(int stage, int version) {
    MutexLock lock(mu_);
    const auto found = weights_[stage].find(version);
    if (found != weights_[stage].end()) return found->second;
    queue_.Problem(absl::StrCat("version ", version, " of stage ", stage, " is not there"));
    return queue_.NewTensor(MemoryPlace::kDevice);
  }
  void SetWeights(const Job& job, const Tensor& next, bool keep) {
    MutexLock lock(mu_);
    weights_[job.stage][job.step + 1] = next;
    if (!keep) weights_[job.stage].erase(job.step);
  }

  // Copies behind the tensor's fence, or behind all that the rank was given.
  Tensor Copy(const Tensor& tensor, MemoryPlace place) {
    if (prepared != &device_) queue_.Problem("a thread that was not prepared uses the device");
    Tensor copy = queue_.NewTensor(place, static_cast<int>(tensor.bytes / sizeof(Value)));
    DeviceQueue::Order order;
    order.rank = rank_;
    if (tensor.ready != nullptr) {
      order.after.push_back(std::static_pointer_cast<Work>(tensor.ready));
    } else if (tensor.place == MemoryPlace::kDevice) {
      order.after = queue_.Unfinished(rank_);
    }
    order.kept = {tensor, copy};
    order.actions.push_back([this, n = tensor.bytes / sizeof(Value), from = tensor.data, to = copy.data] {
      for (size_t i = 0; i < n; i += 8)
        DeviceQueue::Write(static_cast<Value*>(to) + i, queue_.Read(static_cast<Value*>(from) + i));
    });
    copy.ready = queue_.Give(std::move(order));
    return copy;
  }

  LaunchingDevice& device_;
  DeviceQueue& queue_;
  const Rank rank_;
  Mutex mu_;
  std::vector<std::shared_ptr<Work>> behind_companion_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::map<int, Tensor>> weights_ ABSL_GUARDED_BY(mu_);  // by stage and version
  std::map<Job, Tensor> outputs_ ABSL_GUARDED_BY(mu_);
  std::map<Job, std::vector<Tensor>> inputs_ ABSL_GUARDED_BY(mu_);
  std::map<std::tuple<int, int, int>, Tensor> half_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, int>, std::map<int, Tensor>> held_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, int>, Tensor> sums_;  // of the job under way
};

thread_local DeviceQueue::Order LaunchingRank::current;

void LaunchingDevice::PrepareThread() { prepared = this; }

absl::StatusOr<std::unique_ptr<RankCompute>> LaunchingDevice::CreateRank(const ScheduledRun&, Rank rank,
                                                                         MemorySource&) {
  MutexLock lock(mu_);
  ++ranks_;
  return std::make_unique<LaunchingRank>(this, rank);
}

std::map<std::pair<Rank, int>, std::pair<int, Value>> LaunchingDevice::saved() {
  MutexLock lock(mu_);
  return saved_;
}

int LaunchingDevice::ranks() {
  MutexLock lock(mu_);
  return ranks_;
}

namespace {

class CarryingTransport final : public Transport {
 public:
  CarryingTransport(std::unique_ptr<Transport> transport, DeviceQueue* queue)
      : transport_(std::move(transport)), queue_(*queue) {}

  const std::string& address() const override { return transport_->address(); }
  absl::string_view name() const override { return transport_->name(); }
  MemorySource& memory() override { return transport_->memory(); }
  void BeginEpoch(uint64_t run, uint64_t epoch) override { transport_->BeginEpoch(run, epoch); }
  absl::Status Admit(const std::vector<PeerAddress>& peers) override { return transport_->Admit(peers); }
  absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) override {
    return transport_->Connect(peer, address, label);
  }
  void Want(PeerId peer, const TensorKey& key) override { transport_->Want(peer, key); }
  void Cancel(const TensorKey& key) override { transport_->Cancel(key); }
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override {
    if (tensor.ready != nullptr) queue_.Problem("a tensor is offered with its fence");
    transport_->Offer(peer, key, std::move(tensor));
  }
  int Progress(Nanos now, std::vector<TransportEvent>* events) override {
    const size_t before = events->size();
    const int handled = transport_->Progress(now, events);
    for (size_t i = before; i < events->size(); ++i) {
      Tensor& tensor = (*events)[i].tensor;
      if (tensor.place == MemoryPlace::kDevice) tensor = Received(tensor);
    }
    return handled;
  }
  int event_fd() const override { return transport_->event_fd(); }
  bool Arm() override { return transport_->Arm(); }
  Nanos next_look() const override { return transport_->next_look(); }
  bool CarriesDevice(PeerId) const override { return true; }
  uint64_t bytes_held() const override { return transport_->bytes_held(); }
  TransportCounters counters() const override { return transport_->counters(); }
  void Close(Nanos deadline) override { transport_->Close(deadline); }

 private:
  // Returns a tensor in the transport's memory.
  Tensor Received(const Tensor& tensor) {
    Tensor here = queue_.NewTensor(MemoryPlace::kDevice, static_cast<int>(tensor.bytes / sizeof(Value)));
    for (size_t i = 0; i < tensor.bytes / sizeof(Value); i += 8) {
      DeviceQueue::Write(static_cast<Value*>(here.data) + i,
                         queue_.Read(static_cast<const Value*>(tensor.data) + i));
    }
    here.made_ns = tensor.made_ns;
    return here;
  }

  const std::unique_ptr<Transport> transport_;
  DeviceQueue& queue_;
};

}  // namespace

std::unique_ptr<Transport> CarryDeviceMemory(std::unique_ptr<Transport> transport, DeviceQueue* queue) {
  return std::make_unique<CarryingTransport>(std::move(transport), queue);
}

}  // namespace weft
