#include "tests/conformance/faulty_compute.h"

#include <algorithm>
#include <cstring>

#include "tests/conformance/training_driver.h"

namespace weft::testing {
namespace {

// A bit in the middle of the mantissa of the element in the middle.
void FlipBit(const Tensor& tensor) {
  auto* const bytes = static_cast<unsigned char*>(tensor.data);
  bytes[tensor.bytes / 2 / 4 * 4 + 2] ^= 0x10;
}

Tensor Flipped(const Tensor& tensor) {
  Tensor copy = CopyOf(tensor);
  FlipBit(copy);
  return copy;
}

Tensor Scaled(const Tensor& tensor, float factor) {
  Tensor copy = CopyOf(tensor);
  auto* const values = static_cast<float*>(copy.data);
  for (size_t i = 0; i < copy.bytes / sizeof(float); ++i) values[i] *= factor;
  return copy;
}

class FaultyCompute final : public RankCompute {
 public:
  FaultyCompute(std::unique_ptr<RankCompute> sound, std::shared_ptr<Plant> plant)
      : sound_(std::move(sound)), plant_(std::move(plant)) {}

  // RankCompute.
  void BeginJob(const Job& job, bool overlapped) override { sound_->BeginJob(job, overlapped); }
  std::shared_ptr<LaunchedJob> EndJob() override { return sound_->EndJob(); }
  absl::StatusOr<Tensor> ToHost(Tensor tensor) override { return sound_->ToHost(std::move(tensor)); }
  BytesByClass live_bytes() const override { return sound_->live_bytes(); }
  BytesByClass peak_bytes() const override { return sound_->peak_bytes(); }
  int64_t most_bytes() const override { return sound_->most_bytes(); }

  // RankPasses.
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version) override {
    return Damaged(job, sound_->Forward(job, std::move(inputs), StaleFor(job, std::move(weights)), version));
  }
  absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                            int version) override {
    return Damaged(job,
                   sound_->ForwardOnly(job, std::move(inputs), StaleFor(job, std::move(weights)), version));
  }
  absl::Status TakePass(const Job& job, std::vector<Tensor> inputs) override {
    return sound_->TakePass(job, std::move(inputs));
  }
  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                          Tensor weights, int version, bool hand_out) override {
    for (Tensor& gradient : output_gradients) {
      if (Does(Wrong::kScalesBackward, job)) gradient = Scaled(gradient, 2);
      if (Does(Wrong::kDropsBackward, job)) gradient = Scaled(gradient, 0);
    }
    // The pass of a forward that read a copy goes on with a copy.
    if (weights.empty() && job.microbatch == stale_of_.microbatch && job.stage == stale_of_.stage &&
        job.step == stale_of_.step && !stale_.empty()) {
      weights = CopyOf(stale_);
    }
    auto result = sound_->Backward(job, std::move(output_gradients), std::move(weights), version, hand_out);
    if (!result.ok()) return result;
    if (!result->input_gradients.empty() && Does(Wrong::kFlipsInputGradient, job))
      FlipBit(result->input_gradients[0]);
    if (!result->gradient.empty() && Does(Wrong::kFlipsGradient, job)) FlipBit(result->gradient);
    return result;
  }

  // RankUpdates.
  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) override {
    const bool meant = microbatch == plant_->fault.microbatch;
    if (meant && Does(Wrong::kDropsMicrobatch, job))
      return sound_->Accumulate(job, microbatch, Scaled(slice, 0), part, parts);
    if (meant && Does(Wrong::kSwapsGradients, job)) {
      const Tensor copy = CopyOf(slice);
      auto* const values = static_cast<float*>(copy.data);
      const size_t half = copy.bytes / sizeof(float) / 2;
      std::swap_ranges(values, values + half, values + half);
      return sound_->Accumulate(job, microbatch, copy, part, parts);
    }
    return sound_->Accumulate(job, microbatch, slice, part, parts);
  }
  absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) override {
    auto sum = sound_->AddToSum(job, before, std::move(gradient));
    if (sum.ok() && Does(Wrong::kFlipsRunningSum, job)) FlipBit(*sum);
    return sum;
  }
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) override {
    auto sum = sound_->TakeSum(job, part, parts);
    if (sum.ok() && Does(Wrong::kFlipsSum, job)) FlipBit(*sum);
    return sum;
  }
  absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                    const std::vector<Tensor>& others) override {
    return sound_->SumSquares(job, sum, part, parts, others);
  }
  absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                      bool keep) override {
    KeepForStale(job);
    std::vector<Tensor> taken = sums;
    if (!sums.empty() && Does(Wrong::kScalesUpdate, job)) taken[0] = Scaled(sums[0], 2);
    return Damaged(job, sound_->Update(job, taken, norm, keep));
  }
  absl::Status InstallWeights(const Job& job, const Tensor& weights, bool keep) override {
    KeepForStale(job);
    return Damaged(job, sound_->InstallWeights(job, weights, keep));
  }

  // RankWeights.
  absl::Status AddStage(int stage, const StageRole& role) override { return sound_->AddStage(stage, role); }
  int64_t stage_elements(int stage) const override { return sound_->stage_elements(stage); }
  absl::StatusOr<Tensor> Weights(int stage, int version) override { return sound_->Weights(stage, version); }
  void DropWeights(int stage, int version) override { sound_->DropWeights(stage, version); }
  absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                       int version) override {
    auto whole = sound_->GatherWeights(job, slices, version);
    if (!whole.ok() || !Does(Wrong::kSwapsWeightSlices, job)) return whole;
    auto* const values = static_cast<float*>(whole->data);
    const size_t count = slices.size();
    const size_t slice = whole->bytes / sizeof(float) / count;
    std::swap_ranges(values, values + slice, values + slice * (count - 1));
    return whole;
  }
  absl::StatusOr<Tensor> RoomForWeights(const Job& job) override { return sound_->RoomForWeights(job); }
  absl::Status BeginState(const Job& job) override { return sound_->BeginState(job); }
  absl::Status InstallState(const Job& job, Tensor state) override {
    return sound_->InstallState(job, std::move(state));
  }
  absl::StatusOr<Tensor> GiveState(const Job& job) override { return sound_->GiveState(job); }
  bool HasState(int stage) const override { return sound_->HasState(stage); }

  // RankFiles.
  absl::Status Save(int stage, const std::string& folder) override { return sound_->Save(stage, folder); }
  absl::Status BeginSnapshot(int stage, SnapshotMemory& memory) override {
    return sound_->BeginSnapshot(stage, memory);
  }
  absl::Status BeginSave(int stage, const std::string& folder) override {
    return sound_->BeginSave(stage, folder);
  }
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(int stage, SnapshotMemory& memory) override {
    return sound_->Snapshot(stage, memory);
  }
  absl::Status SaveInitial(int stage, const std::string& folder) override {
    return sound_->SaveInitial(stage, folder);
  }

 private:
  bool Does(Wrong wrong, const Job& job) {
    if (plant_->fault.wrong != wrong || plant_->fault.job != job) return false;
    ++plant_->done;
    return true;
  }

  absl::StatusOr<ForwardResult> Damaged(const Job& job, absl::StatusOr<ForwardResult> result) {
    if (result.ok() && !result->activation.empty() && Does(Wrong::kFlipsActivation, job))
      FlipBit(result->activation);
    return result;
  }
  absl::Status Damaged(const Job& job, const absl::Status& made) {
    if (!made.ok() || !Does(Wrong::kFlipsWeights, job)) return made;
    const auto weights = sound_->Weights(job.stage, job.step + 1);
    if (weights.ok()) FlipBit(*weights);
    return weights.status();
  }

  // Keeps the version that an update begins with, where the step behind it is to read it once more.
  void KeepForStale(const Job& job) {
    const PlantedFault& fault = plant_->fault;
    if (fault.wrong != Wrong::kReadsStaleWeights || job.stage != fault.job.stage ||
        job.step + 1 != fault.job.step) {
      return;
    }
    const auto weights = sound_->Weights(job.stage, job.step);
    if (weights.ok()) stale_ = CopyOf(*weights);
  }
  Tensor StaleFor(const Job& job, Tensor weights) {
    if (stale_.empty() || !Does(Wrong::kReadsStaleWeights, job)) return weights;
    stale_of_ = job;
    return CopyOf(stale_);
  }

  const std::unique_ptr<RankCompute> sound_;
  const std::shared_ptr<Plant> plant_;
  Tensor stale_;
  Job stale_of_{-1, -1, -1, -1, JobKind::kForward};
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> sound, std::shared_ptr<Plant> plant)
      : sound_(std::move(sound)), plant_(std::move(plant)) {}

  const std::string& address() const override { return sound_->address(); }
  absl::string_view name() const override { return sound_->name(); }
  MemorySource& memory() override { return sound_->memory(); }
  void BeginEpoch(uint64_t run, uint64_t epoch) override { sound_->BeginEpoch(run, epoch); }
  absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) override {
    return sound_->Connect(peer, address, label);
  }
  void Want(PeerId peer, const TensorKey& key) override { sound_->Want(peer, key); }
  void Cancel(const TensorKey& key) override { sound_->Cancel(key); }
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override {
    sound_->Offer(peer, key, std::move(tensor));
  }
  int Progress(Nanos now, std::vector<TransportEvent>* events) override {
    const size_t before = events->size();
    const int handled = sound_->Progress(now, events);
    for (size_t i = before; i < events->size(); ++i) {
      TransportEvent& event = (*events)[i];
      if (event.kind == TransportEvent::Kind::kArrived && IsMeant(event.key))
        event.tensor = Flipped(event.tensor);
    }
    return handled;
  }
  int event_fd() const override { return sound_->event_fd(); }
  bool Arm() override { return sound_->Arm(); }
  Nanos next_look() const override { return sound_->next_look(); }
  uint64_t bytes_held() const override { return sound_->bytes_held(); }
  TransportCounters counters() const override { return sound_->counters(); }
  void Close(Nanos deadline) override { sound_->Close(deadline); }

 private:
  // The tensor's key names the job that made it, and the kind of the one that reads it; the first that fits
  // is meant.
  bool IsMeant(const TensorKey& key) {
    const PlantedFault& fault = plant_->fault;
    if (fault.wrong != Wrong::kFlipsInTransfer || key.kind != fault.tensor || key.step != fault.job.step ||
        key.reader() != fault.job.kind || plant_->done > 0) {
      return false;
    }
    const int stage = key.kind == TensorKind::kActivation      ? key.stage + 1
                      : key.kind == TensorKind::kInputGradient ? key.stage - 1
                                                               : key.stage;
    const bool of_microbatch = HasMicrobatch(fault.job.kind) && key.kind != TensorKind::kGradientSum;
    if (stage != fault.job.stage || (of_microbatch && key.microbatch != fault.job.microbatch)) return false;
    ++plant_->done;
    return true;
  }

  const std::unique_ptr<Transport> sound_;
  const std::shared_ptr<Plant> plant_;
};

}  // namespace

std::unique_ptr<RankCompute> MakeFaulty(std::unique_ptr<RankCompute> sound, std::shared_ptr<Plant> plant) {
  return std::make_unique<FaultyCompute>(std::move(sound), std::move(plant));
}

std::unique_ptr<Transport> MakeFaulty(std::unique_ptr<Transport> sound, std::shared_ptr<Plant> plant) {
  return std::make_unique<FaultyTransport>(std::move(sound), std::move(plant));
}

}  // namespace weft::testing
