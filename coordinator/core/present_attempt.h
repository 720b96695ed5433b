// Makes the attempts of a run, one after the other, and holds the present one with all that belongs to it:
// its members and their leases, where it began, and the copies that its processes keep.
//
// none --Make--> under way --Drop--> none
// none --AwaitReturn--> returning --EndReturn, GoOn--> under way
//
// An attempt begins on the processes that the run has got, behind the step that RunBeginnings says, with its
// ranks where RunPlacement says; the record of it goes to the store with its assignments. One that a former
// coordinator led goes on as it is recorded, once all of its processes are back (run_return.h).
//
// Invariants: a run has at most one attempt, or the return of one. The members and their leases belong to
// that one, and without one there are none. The info lists the members of an attempt under way. The epoch of
// an attempt is recorded in the Step of its assignments, or before. Copies and beginnings outlive an attempt:
// the next one begins with them.
//
// Run (run.h) owns it, decides when an attempt begins and ends, and steps the attempt. Refers to the
// submission, the attempts and the info of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_PRESENT_ATTEMPT_H_
#define WEFT_COORDINATOR_CORE_PRESENT_ATTEMPT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/core/run_attempt.h"
#include "coordinator/core/run_attempts.h"
#include "coordinator/core/run_beginnings.h"
#include "coordinator/core/run_copies.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/run_placement.h"
#include "coordinator/core/run_return.h"
#include "coordinator/core/run_submission.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/worker_table.h"

namespace weft {

class PresentAttempt {
 public:
  PresentAttempt(const RunSubmission& submission, RunAttempts& attempts, RunInfo* info)
      : submission_(submission), attempts_(attempts), info_(info), beginnings_(attempts, copies_, info) {}
  PresentAttempt(const PresentAttempt&) = delete;
  PresentAttempt& operator=(const PresentAttempt&) = delete;

  // Makes an attempt on the workers, in their order, and assigns it to them. `peers`: their addresses.
  // Requires that there is none.
  void Make(StepEffects& out, const std::vector<Worker*>& workers, const std::vector<Peer>& peers,
            const RunPlacement& placement, FencingNumbers* numbers);
  // Awaits the processes of an attempt as it was stored, with its ranks on these members.
  void AwaitReturn(std::unique_ptr<RunReturn> awaited, const std::vector<int>& member_of_rank);
  // Ends the wait for the processes, which are all back.
  std::unique_ptr<RunReturn> EndReturn() { return std::move(return_); }
  // Goes on with the attempt of which `back` has all processes. Returns false if what they say does not fit.
  bool GoOn(StepEffects& out, const RunReturn& back);
  // Drops what belongs to one attempt.
  void Drop();

  // Notes that the run has had an attempt under a former coordinator.
  void NoteBegun() { has_begun_ = true; }
  // Returns true if the present attempt, or the wait for one, is not the first.
  bool has_begun() const { return has_begun_; }
  // Returns the attempt under way, and the return that is awaited; null where there is none.
  RunAttempt* attempt() const { return attempt_.get(); }
  RunReturn* awaited() const { return return_.get(); }
  // Writes into the figures which attempt is under way or awaited, and how far its checkpoints are.
  void WriteTo(RunFigures* figures) const;

  RunMembers& members() { return members_; }
  const RunMembers& members() const { return members_; }
  RunBeginnings& beginnings() { return beginnings_; }
  const RunBeginnings& beginnings() const { return beginnings_; }

  const RunCopies& copies() const { return copies_; }
  // Takes the copies that a process keeps, and lets all drop those that a newer complete step replaces.
  // Returns true if a step has become complete. Copies that are not of the attempt are counted as fenced.
  bool Take(StepEffects& out, SessionId from, const CopiesHeld& m);
  // Takes what a process keeps from before the coordinator was started again. Returns false if the run has no
  // use for it.
  bool TakeAgain(SessionId from, const CopiesHeld& m);
  // Notes that a process is gone, with all that it kept of any run's state.
  void LoseCopies(SessionId session) { copies_.Lose(session); }

 private:
  bool Saves() const { return !submission_.output().empty(); }
  void BeginCopies();
  AttemptRecord Record(const std::vector<Worker*>& workers, bool ordered) const;

  const RunSubmission& submission_;
  RunAttempts& attempts_;
  RunInfo* const info_;
  RunMembers members_;
  RunCopies copies_;
  RunBeginnings beginnings_;
  std::unique_ptr<RunAttempt> attempt_;  // null unless one is under way
  std::unique_ptr<RunReturn> return_;    // while it awaits the processes of an attempt
  bool has_begun_ = false;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_PRESENT_ATTEMPT_H_
