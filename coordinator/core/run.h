// Holds one run in the coordinator: its state, its ranks and their leases, its jobs, and the deadline of its
// present wait.
//
// A value with small transitions; coordinator_core.h decides when to make them. run_info.h has the states.
// Pure.
#ifndef WEFT_COORDINATOR_CORE_RUN_H_
#define WEFT_COORDINATOR_CORE_RUN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/events.h"
#include "coordinator/core/work_queue.h"
#include "proto/session/link_clock.h"

namespace weft {

// A process of a run. Members keep their place when the process is gone.
struct RunMember {
  SessionId session = 0;
  int32_t process = -1;
  std::string label;
  bool alive = true;
  bool prepared = false;
  bool finished = false;
  std::string stalled;  // sentence about its vain wait; "" while it gets on
};

struct RunRank {
  int member = 0;
  Token token;
  int32_t credit = 0;
};

struct Run {
  RunInfo info;
  std::string request;
  uint64_t body_hash = 0;  // hash of the submission, to tell a repeated request from another one
  std::shared_ptr<const RunPlan> plan;
  std::string spec;
  std::string output;

  uint64_t epoch = 0;       // epoch of this attempt
  bool collective = false;  // true if its plan is RunPlan::collective
  std::vector<RunMember> members;
  std::vector<RunRank> ranks;
  std::unique_ptr<WorkQueue> queue;
  std::unique_ptr<Checkpoints> checkpoints;  // checkpoints of a run with an output folder
  std::string save_failure;                  // failure of a snapshot that is to be dropped
  // True once the checkpoint that it ends with is complete, or was dropped.
  bool stop_sealed = false;
  std::string run_id;
  std::map<Rank, RankReport> reports;
  std::vector<Rank> may_grant;  // ranks to look at when the Step ends; may repeat
  bool all_may_grant = false;

  int64_t deadline = kNever;  // deadline of the state; while running, of the next completion
  // Time until which a reported failure waits for its cause, which may be the death of another process that
  // is not known yet. Until then the run hands out nothing.
  int64_t blame_deadline = kNever;
  std::string first_failure;
  SessionId failed_session = 0;  // session of the process that reported it

  bool active() const { return !IsFinal(info.state) && info.state > RunState::kWaiting; }
  bool blaming() const { return blame_deadline != kNever; }
  RunMember* MemberOf(SessionId session);
  int NumberOf(SessionId session) const;  // number of the member; -1 for none
  bool AllAlive(bool RunMember::*flag) const;
  // Returns "process 1 (..) and process 3 (..)": members whose flag is not set.
  std::string Missing(bool RunMember::*flag) const;

  // Maps the ranks on the members in contiguous blocks, rank w on member w*P/W, and gives each a lease;
  // tokens start at `sequence`.
  void Lease(uint64_t attempt, uint64_t* sequence);
  Assign AssignFor(int member, const std::vector<Peer>& peers) const;

  // Returns "backward (step 3, stage 1, micro-batch 5) on rank 2 of process 1 (..)", and so on for at most
  // four.
  std::string DescribeAwaited() const;
  // Returns "the checkpoint of step 40 from process 1 (..)". Requires one that is under way.
  std::string DescribeCheckpoint() const;
  // "the validation of step 40 from process 1 (..)". Requires one that is not done.
  std::string DescribeValidation() const;

  // Ends the run: drops what only a live run needs.
  void End(RunState state, std::string reason, int64_t now);
};

uint64_t BodyHash(const std::string& spec, int32_t processes, const std::string& output);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_H_
