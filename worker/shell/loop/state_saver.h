// Saves the state of a run's stages beside its jobs: snapshots into checkpoints, copies into the memory of
// this process. It completes checkpoints and validates weights that were kept aside, too.
//
// Behind an update that the core marked, the job's thread hands over what it took. Threads of their own write
// it (snapshot_writer.h, validator.h) and report when a step is complete, or why it is not. Snapshots lie in
// memory that stays for the next one of the attempt (snapshot_memory.h). Copies outlive the attempt
// (kept_copies.h): the next one may begin with them. So the snapshots of a run with redundancy lie in memory
// that the process's peer maps: on one machine both keep the same bytes, and neither copies them again.
//
// Invariants: what is written belongs to the run and the attempt that BeginRun named. Nothing is reported of
// what Cancel forgot.
//
// Threads: the owner locks, but for End and for reading copies. The listener's functions are called on the
// writers' threads without a lock. Ownership: borrows the device and the memory; work that is under way
// shares the folders. Failure: is reported, with the file and the reason.
#ifndef WEFT_WORKER_SHELL_LOOP_STATE_SAVER_H_
#define WEFT_WORKER_SHELL_LOOP_STATE_SAVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/checkpoint/snapshot_memory.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/checkpoint_work.h"
#include "worker/shell/loop/kept_copies.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/snapshot_writer.h"
#include "worker/shell/loop/snapshot_writes.h"
#include "worker/shell/loop/validator.h"
#include "worker/shell/memory/memory_source.h"

namespace weft {

class StateSaver {
 public:
  struct Listener {
    std::function<void(const SnapshotWriter::Done&)> snapshot_done, copies_done;
    std::function<void(const Validation&)> validated;
  };
  using Snapshot = absl::StatusOr<std::shared_ptr<const StageSnapshot>>;

  // `shared`: memory that the transport lets peers read.
  StateSaver(Device& device, MemorySource& shared, Listener listener);

  // Begins an attempt of a run. `folders`: null for a run without output.
  void BeginRun(const Assign& assign, std::shared_ptr<const RunSpec> spec, SharedFolders folders);
  const SharedFolders& folders() const { return folders_; }

  // Carry out what the core decides.
  void Expect(const SnapshotEffect& effect);
  void Expect(const CopyEffect& effect);
  void Seal(const SealEffect& effect) { snapshots_.Seal(run_, effect.step, SealWork(effect, folders_)); }
  void Validate(const ValidateEffect& effect);
  void Drop(const DropCopiesEffect& effect) { kept_.Drop(effect.run, effect.epoch, effect.step); }

  // Has the memory of the first checkpoint used for the first time, beside the work: the rank that copies
  // would wait for it, longer than for the copy. With redundancy the first copy comes too soon for that.
  void Reserve(const std::vector<Rank>& ranks, RankSeats& seats);
  // Gives jobs the memory for what they take.
  SnapshotMemory& memory() { return spec_->redundancy > 0 ? shared_memory_ : memory_; }
  const SnapshotMemory& memory() const { return spec_->redundancy > 0 ? shared_memory_ : memory_; }
  // Writes what a job took behind its update, as the core wanted it, of that step.
  void Write(int step, const LeftByUpdate& leaves, Snapshot snapshot);
  // Keeps a copy that has come from another process.
  void Keep(const TensorKey& key, Tensor copy) { kept_.Put(run_, KeyOf(key), std::move(copy)); }
  // Returns a copy that another process wants.
  absl::StatusOr<Tensor> Find(const TensorKey& key) const { return kept_.Find(run_, KeyOf(key)); }
  const KeptCopies& copies() const { return kept_; }
  // Returns what has been written to checkpoints.
  SnapshotWrites writes() const { return writes_->Get(); }

  // Adds the bytes of snapshots and copies to the report of a rank: they are the process's.
  void AddTo(RankReport* report) const;

  // Forgets what waits to be written, and gives memory back. `validates`: this process has weights aside,
  // which go too.
  void Cancel(bool validates);
  // Returns true if nothing is being written.
  bool idle() const { return snapshots_.idle() && copies_.idle(); }
  // Ends the writers (SnapshotWriter::End). Call without the lock.
  bool End(int64_t until) { return snapshots_.End(until) && copies_.End(until); }

 private:
  KeptCopies::Key KeyOf(const TensorKey& key) const;

  Device& device_;
  uint64_t run_ = 0, epoch_ = 0;  // the attempt
  uint64_t copies_epoch_ = 0;     // of the copies that it begins with
  std::shared_ptr<const RunSpec> spec_;
  SharedFolders folders_;
  // Shared with writers that a file system holds for longer than this lives.
  const std::shared_ptr<SnapshotWriteCounts> writes_ = std::make_shared<SnapshotWriteCounts>();
  // Last, so that their threads have ended before anything that they use.
  SnapshotMemory memory_, shared_memory_;  // for runs without redundancy, and with
  KeptCopies kept_;                        // beyond the end of an attempt
  SnapshotWriter snapshots_, copies_;
  Validator validator_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_STATE_SAVER_H_
