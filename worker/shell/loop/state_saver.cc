#include "worker/shell/loop/state_saver.h"

#include <utility>

#include "base/monotonic_clock.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

// Returns ordinary memory. It has no end, because a rank that outlives the saver may still have a block of
// it.
MemorySource& OrdinaryMemory() {
  static auto* const memory = new PlainMemory;
  return *memory;
}

uint64_t BytesOf(const StageSnapshot& piece) {
  uint64_t bytes = 0;
  for (const Tensor& flat : piece.flats) bytes += flat.bytes;
  return bytes;
}

}  // namespace

StateSaver::StateSaver(Device& device, MemorySource& shared, Listener listener)
    : device_(device),
      memory_(OrdinaryMemory()),
      shared_memory_(shared),
      kept_(shared_memory_),
      snapshots_(std::move(listener.snapshot_done), [&device] { device.PrepareThread(); }),
      copies_(std::move(listener.copies_done), [&device] { device.PrepareThread(); }),
      validator_(std::move(listener.validated)) {}

void StateSaver::BeginRun(const Assign& assign, std::shared_ptr<const RunSpec> spec, SharedFolders folders) {
  run_ = assign.run;
  epoch_ = assign.epoch;
  copies_epoch_ = assign.copies_epoch;
  spec_ = std::move(spec);
  folders_ = std::move(folders);
  kept_.BeginRun(run_);
}

void StateSaver::Expect(const SnapshotEffect& effect) {
  snapshots_.Expect(run_, effect.step, effect.pieces,
                    [folder = folders_->Partial(effect.step), writes = writes_](const StageSnapshot& piece) {
                      const int64_t begin = MonotonicNow();
                      absl::Status written = WriteSnapshot(folder, piece);
                      writes->Note(BytesOf(piece), MonotonicNow() - begin, written.ok());
                      return written;
                    });
}

void StateSaver::Expect(const CopyEffect& effect) {
  copies_.Expect(run_, effect.step, effect.parts,
                 [this, run = run_, epoch = epoch_](const StageSnapshot& piece) {
                   return kept_.Put(run, epoch, piece);
                 });
}

void StateSaver::Validate(const ValidateEffect& effect) {
  validator_.Begin(run_, effect.step, ValidationWork(device_, spec_, folders_, effect.step));
}

void StateSaver::Reserve(const std::vector<Rank>& ranks, RankSeats& seats) {
  if (!spec_->checkpoint.periodic() || spec_->redundancy > 0) return;
  for (const Rank rank : ranks) {
    const Seat* const seat = seats.Of(rank);
    for (const int stage : seat->saved_stages) {
      const size_t bytes = seat->compute->SnapshotBytes(stage);
      if (bytes > 0) snapshots_.Prepare(memory_.Reserve(bytes));
    }
  }
}

void StateSaver::Write(int step, const LeftByUpdate& leaves, Snapshot snapshot) {
  if (leaves.copy) copies_.Write(run_, step, snapshot);
  if (leaves.snapshot) snapshots_.Write(run_, step, std::move(snapshot));
}

void StateSaver::Cancel(bool validates) {
  snapshots_.Cancel();
  copies_.Cancel();
  memory_.Release();
  shared_memory_.Release();
  if (validates && folders_ != nullptr && spec_->validate.any())
    validator_.Cancel([folders = folders_] { folders->DropKeptAside(); });
}

void StateSaver::AddTo(RankReport* report) const {
  if (spec_->redundancy > 0) kept_.AddTo(report);
  const int64_t peak = memory().peak_bytes();
  if (peak == 0) return;
  report->live_bytes["snapshots"] = memory().bytes();
  report->peak_bytes["snapshots"] = peak;
}

KeptCopies::Key StateSaver::KeyOf(const TensorKey& key) const {
  return {key.begins_attempt() ? copies_epoch_ : key.epoch, key.step, key.copied_part()};
}

}  // namespace weft
