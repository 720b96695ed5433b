// Keeps a second copy of what this process's ranks save: decides what is copied behind which update, what
// goes to which process, and, in an attempt that begins with copies, what comes from which.
//
// The processes of a run are a ring in the order of its assignment. Behind each step the ranks of a process
// take snapshots, as for a checkpoint; the process keeps them in its memory and offers them to the process
// behind it, its peer. When its own jobs of a step have ended, it wants the copies of the process before it.
// The process reports copies that it has in full (CopiesHeld). The coordinator decides what may be dropped,
// and from which step the next attempt goes on. There each process wants what its ranks begin with from those
// that keep it, and keeps that too. It does so when all have begun the attempt, because a transport knows no
// other one.
//
// Invariants: a part of a step's state is taken, sent and wanted once. Copies are of the present epoch; of
// another one are only those with which the attempt begins. Pure; one thread.
#ifndef WEFT_WORKER_CORE_STATE_COPIES_H_
#define WEFT_WORKER_CORE_STATE_COPIES_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "worker/core/local_run.h"
#include "worker/core/worker_effects.h"

namespace weft {

class StateCopies {
 public:
  // Refers to `run`.
  explicit StateCopies(const LocalRun& run);

  // Returns true if copies are made of the state of the step.
  bool AreMade(int step) const { return run_.assignment().copies && first_ <= step && step < run_.steps(); }
  bool IsTakenBehind(const Job& update) const;
  // Notes that an update starts behind which a copy is taken; the first of its step says how many there will
  // be.
  void Expect(const Job& update, WorkerEffects* out);
  // Notes that the copies of this process's ranks are in its memory: hands them to the peer.
  void Made(int step, WorkerEffects* out) const;
  // Notes that this process's jobs of the step have ended: wants the copies of the process before it.
  void StepEnded(int step, WorkerEffects* out);

  // Wants what the ranks begin with, and hands to others what they begin with. Requires that the attempt
  // begins with copies.
  void Fetch(WorkerEffects* out);
  // Takes a copy that has arrived.
  void Arrived(const TensorKey& key, WorkerEffects* out);

 private:
  using Parts = std::set<StatePart>;

  // Returns the parts of the step's state that the process's ranks save.
  Parts SavedBy(int32_t process, int step) const;
  // Returns the ranks of any process that read the part to begin with its stage.
  std::vector<Rank> ReadersOf(const StatePart& part) const;
  // Returns the processes of these ranks, once each.
  std::set<int32_t> ProcessesOf(const std::vector<Rank>& ranks) const;
  TensorKey KeyOf(const StatePart& part, int step, int32_t from, int32_t to, TensorKey::CopyUse use) const;
  Rank FirstRankOf(int32_t process) const;
  SendEffect Report(uint64_t epoch, int step, const Parts& parts) const;
  void ResumeIfHere(WorkerEffects* out);

  const LocalRun& run_;
  const int first_;                  // first step of which copies are made
  int32_t process_ = 0;              // this one
  int32_t before_ = 0, behind_ = 0;  // its neighbours in the ring
  std::set<int> expected_;           // steps of which an update has started
  std::map<int, Parts> second_;      // by step: parts of the process before that are awaited
  Parts begin_;                      // parts to begin with that are awaited
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_STATE_COPIES_H_
