// Leads the life of a run in this process: makes the process ready for it, has its ranks prepared, joins its
// communicators, and ends it.
//
// The owner takes each step when the one before is over: Begin; when all ranks have been prepared, Connect;
// then Join, until all groups have joined. Meanwhile and afterwards the ranks do rounds (rank_rounds.h) and
// jobs. End is called until it returns true: it ends what nothing uses any more, and has to wait for the
// rest. Clear leaves the process as it was before.
//
// Invariants:
//   1. One run at a time.
//   2. Its ranks are seated before anything of the run can fail, because reports and metrics ask for the seat
//      of each rank that the core has.
//   3. It is over when no task, no work of the device and no write of it is in progress, and not before its
//      ranks have ended.
//
// Not thread-safe; the owner locks. Ownership: borrows options and parts, which outlive it. Failure: of a
// step, which the owner reports. A device that does not end a rank is the owner's to handle (CheckEnd).
#ifndef WEFT_WORKER_SHELL_LOOP_RUN_LIFE_H_
#define WEFT_WORKER_SHELL_LOOP_RUN_LIFE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "schedules/graph/graph.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/communicators.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/rank_rounds.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/run_peers.h"
#include "worker/shell/loop/started_jobs.h"
#include "worker/shell/loop/state_saver.h"
#include "worker/shell/loop/tensor_exchange.h"
#include "worker/shell/loop/work_threads.h"
#include "worker/shell/loop/worker_loop_options.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class RunLife {
 public:
  // The parts of the process that serve one run after the other.
  struct Parts {
    Device& device;
    Transport& transport;
    WorkThreads& threads;
    RankSeats& seats;
    DeviceWork& device_work;
    TensorExchange& exchange;
    Communicators& communicators;
    StartedJobs& started;
    StateSaver& saver;
  };
  using GroupIds = std::vector<std::pair<int, std::string>>;

  RunLife(const WorkerLoopOptions& options, const Parts& parts);

  // Makes the process ready: all that is not a rank's own. Then gives each rank the task to prepare. Returns
  // the ids that this process makes, by group. `graph`, of the run, stays until Clear.
  absl::StatusOr<GroupIds> Begin(int64_t now, const Graph& graph, PrepareEffect& effect);
  // Connects to the other processes. `at_fault` as in RunPeers.
  absl::Status Connect(const std::vector<Rank>& ranks, std::optional<PeerId>* at_fault);
  // Joins the next group, if it is complete. Returns true when all have joined; requires `joins`.
  absl::StatusOr<bool> Join(int64_t now);

  // Have the ranks begin with copies, or save their stages. Resume returns false if no rank has to.
  absl::StatusOr<bool> Resume(const ResumeEffect& effect);
  void Save(int step, const std::vector<Rank>& ranks);
  // See RankRounds, whose methods have the same names.
  WorkThreads::Doing TaskAt(int seat) const { return rounds_.TaskAt(seat); }
  std::optional<RankRounds::Over> Done(Seat& seat, const absl::Status& status) {
    return rounds_.Done(seat, status);
  }

  // Ends the run as far as nothing uses it. Returns true if it is over.
  bool End(int64_t now);
  // Returns true between an End that has to wait and the next one.
  bool ends() const { return ends_; }
  // Returns true if End may have to wait no longer.
  bool CanEnd() const { return ends_ && !rounds_.busy() && !parts_.device_work.busy(); }
  // Returns DeadlineExceeded if the device does not end a rank: it may hold the thread that does so for ever,
  // and a process that waited for it would be given run after run.
  absl::Status CheckEnd(int64_t now) const;
  // Returns the time by which CheckEnd wants to be called; INT64_MAX for none.
  int64_t next_look() const {
    return end_until_ns_ != 0 ? end_until_ns_ : std::numeric_limits<int64_t>::max();
  }
  // Forgets a run that is over.
  void Clear();

  // Returns the run, or the last one; null before the first.
  const std::shared_ptr<const ScheduledRun>& run() const { return run_; }
  // Returns true if every rank of the run has its compute.
  bool prepared() const { return prepared_; }
  // Returns true while a prepared run waits for its communicators.
  bool joins() const { return joins_; }
  bool IsConnected(PeerId process) const { return peers_.IsConnected(process); }

 private:
  absl::StatusOr<GroupIds> MakeReady(int64_t now, const Graph& graph, PrepareEffect& effect);
  void EndRanks(int64_t now);

  const WorkerLoopOptions& options_;
  const Parts parts_;
  RankRounds rounds_;
  RunPeers peers_;
  std::shared_ptr<const ScheduledRun> run_;
  uint64_t number_ = 0;  // of the run
  bool prepared_ = false, joins_ = false, ends_ = false;
  int64_t end_until_ns_ = 0;  // 0: no ranks of a device end
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUN_LIFE_H_
