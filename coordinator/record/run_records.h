// Manages the output folders of a coordinator's runs: each run leaves the files there that `weft train`
// leaves, whether a client watches it or not (docs/guide/outputs.md).
//
// Claim opens a run's folder before the run is taken in; the observers then only copy, and a thread of each
// active run writes. A folder that hangs or a disk that is full holds up neither the coordinator nor other
// runs, and fails no run: files that could not be written are logged.
//
// Threads: Claim from any but the coordinator's loop; LookAt and TraceOf from any; the others on the loop.
// Destruction waits a few seconds for writes in progress, no longer.
#ifndef WEFT_COORDINATOR_RECORD_RUN_RECORDS_H_
#define WEFT_COORDINATOR_RECORD_RUN_RECORDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "coordinator/core/events.h"
#include "coordinator/core/run_plan.h"
#include "coordinator/record/run_history.h"
#include "proto/session/run_trace.h"
#include "proto/wire/runs_codec.h"
#include "schedules/drawing/drawing.h"

namespace weft {

class RunRecords {
 public:
  // `root` is where runs without an output folder get one, NAME-RUN. `log` gets a sentence about a run's file
  // that could not be written, on any thread. `written` gets the number of a run that has ended and whose
  // folder is complete, on any thread; it may be empty. `takes_over`: as OutputFolder::Reopen has it, for
  // Restore.
  RunRecords(std::string root, std::function<void(uint64_t run, const std::string&)> log,
             std::function<void(uint64_t run)> written = nullptr, bool takes_over = false);
  ~RunRecords();

  // Opens the folder of the run, which `request` names or which is made below the root, and returns where in
  // it the workers write. `plan` is the run's, with its specification; where that goes on from `checkpoint`
  // there, this is called `checkpoint-STEP` from now on (kept_checkpoint.h). ResourceExhausted if one of
  // these runs writes there, though the folder may have been removed; else failure as OutputFolder::Open.
  absl::StatusOr<RunFolder> Claim(uint64_t run, const SubmitRequest& request, const RunPlan& plan);
  // Takes up the folder of a run as a store has it, before the server begins. AlreadyExists if the run has
  // ended and its folder is complete; Unavailable if the root that had the folder is missing or empty; else
  // as OutputFolder::Reopen.
  absl::Status Restore(const StoredRun& run, const RunPlan& plan);
  // Ends a run, as a store has it, that cannot be planned any more: writes its end and the reason into
  // run.json, and leaves all else in its folder as it is. AlreadyExists if its end is there; else as Restore.
  // Before the server begins.
  absl::Status EndUnplanned(const StoredRun& run, RunState state, const std::string& reason);
  // Releases the folder of a run that was not taken in after all.
  void Release(uint64_t run);

  void OnRun(const RunInfo& run);
  void OnStep(const StepDone& step);
  void OnValidation(const Validation& validation);
  void OnJobs(const JobsEnded& jobs);
  void OnReport(const Report& report);
  void OnLog(const RunLogLine& line);
  void OnReplanned(const Replanned& replanned);
  void OnSpans(const Spans& spans);
  void OnSpansComplete(uint64_t run);

  // Returns what is known of a run that goes on, or is one of the last few that have ended and been written;
  // null for others. May be called from any thread.
  struct Look {
    RunInfo run;
    RunHistory history;
    std::vector<DrawnJob> jobs;  // those of whole steps, the last ones
    int stages = 1;
  };
  std::optional<Look> LookAt(uint64_t run);

  // Returns what came of the writing of a run's end: "", or a sentence about results of a run that finished
  // and that could not be written. Nothing while the run goes on or is being written; "" for runs that these
  // records have not written, and in the end for all.
  std::optional<std::string> EndOf(uint64_t run);

  // Returns the trace of a run: of one that goes on, from what is recorded; else as it is in its folder,
  // `output`. May take long, and blocks on the disk; from any thread. FailedPrecondition for a run that has
  // ended no step yet, or that has left no trace.
  absl::StatusOr<RunTrace> TraceOf(uint64_t run, const std::string& output);

 private:
  class Recording;
  class EndedRuns;

  // Returns Unavailable if the folder is gone together with all others of the root.
  absl::Status CheckRootHolds(const std::string& path) const;
  // Returns ResourceExhausted if a run that has not ended writes there.
  absl::Status CheckNoRunIn(const std::string& path);
  std::shared_ptr<Recording> Find(uint64_t run);
  // Forgets the run; its thread goes on until the run's end is written.
  void Forget(uint64_t run);

  const std::string root_;
  const std::function<void(uint64_t run, const std::string&)> log_;
  const std::function<void(uint64_t run)> written_;
  const bool takes_over_;
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Recording>> recordings_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Recording>> ending_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<EndedRuns> ended_;  // threads that still write keep it too
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_RECORDS_H_
