// Defines what a coordinator must find again when it is started again: each run as it was submitted, what it
// has reached, its steps.
//
// The core puts into the effects of a Step the records that they rest on; the shell makes these durable
// before it carries out anything else of the effects. So whatever a worker or a client has heard is in the
// store. A core that begins anew takes what was stored as RestoreRun events (events.h). Values only; the
// store is coordinator/store/store.h.
//
// Invariants of what is stored: the steps of a run are those from its first on, without a gap; its newest
// checkpoint is of no step behind them; the epoch is the largest that a message has ever had.
#ifndef WEFT_COORDINATOR_CORE_RECORDS_H_
#define WEFT_COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/session/messages.h"
#include "proto/session/run_info.h"

namespace weft {

// An output folder, the place in it where a run writes until it has ended, and the run's identity there
// (messages.h, Assign); "" for none.
struct RunFolder {
  std::string path, live, run_id;
};

// A run as it was submitted.
struct Submission {
  uint64_t run = 0;
  std::string request;    // "" or the name by which the submission may be repeated
  std::string spec;       // passed on to the workers
  int32_t processes = 0;  // as asked for; 0: one a rank
  std::string output;     // as asked for
  RunFolder folder;       // of its own
  std::string file;       // the run file's name
  std::string run_id;     // messages.h, Assign
};

// An attempt of a run as it was assigned: with it a coordinator that is started again takes back the
// processes that go on with it (run_return.h). Each one replaces the one before.
struct AttemptRecord {
  struct Member {
    int32_t process = -1;
    std::string worker, label;
  };
  uint64_t run = 0;
  uint64_t epoch = 0;        // 0: there is none
  uint64_t first_token = 0;  // sequence of rank 0; those of the others follow
  int32_t first_step = 0;
  ReductionMode reduction = ReductionMode::kOrdered;
  bool from_copies = false;  // it began with copies in memory
  std::string schedule;      // JSON of its schedule, where that is not the submitted one; "" otherwise
  std::vector<Member> members;
  std::vector<RankReport> former;  // totals of the attempts before
  // Slow links that the run has left, as its ranks are placed; text of coordinator/replanning/left_links.h.
  std::string left_links;
  bool ordered = false;  // its ranks lie where they were ordered to (run_placement.h)
};

// Progress of a run. Each one replaces the one before.
struct RunFigures {
  RunInfo info;  // with the reports so far
  // Losses of a process since the last new step, and the steps done at the last one (run_attempts.h).
  int32_t losses = 0, furthest = -1;
  // Start of its first job, on the coordinator's monotonic clock; INT64_MAX before that.
  int64_t first_start_ns = INT64_MAX;
  // Epoch of the attempt under way; 0 for none.
  uint64_t epoch = 0;
  // Newest steps of that attempt whose snapshot and whose validation are over; -1 for none.
  int32_t sealed = -1, validated = -1;
  // Steps of the complete checkpoints that an attempt may begin with, ascending (run_attempts.h).
  std::vector<int32_t> checkpoints;
};

// The records of one Step, or of several.
struct Records {
  uint64_t epoch = 0;  // epoch that the next messages have; 0 if it did not change
  std::vector<Submission> submissions;
  std::vector<AttemptRecord> attempts;
  std::vector<RunFigures> figures;
  std::vector<StepDone> steps;
  std::vector<Validation> validations;
  std::vector<uint64_t> written;    // ended runs whose output folders are complete: their steps may go
  std::vector<uint64_t> forgotten;  // ended runs that are remembered no more

  bool empty() const {
    return epoch == 0 && submissions.empty() && attempts.empty() && figures.empty() && steps.empty() &&
           validations.empty() && written.empty() && forgotten.empty();
  }
};

// A run as it is found again.
struct StoredRun {
  Submission submission;
  AttemptRecord attempt;  // under way if its epoch is that of the figures
  RunFigures figures;
  std::vector<StepDone> steps;  // in order; empty once they are in the output folder for good
  std::vector<Validation> validations;
  bool written = false;

  // Returns true if its attempt was under way when it was stored.
  bool under_way() const { return figures.epoch != 0 && figures.epoch == attempt.epoch; }
};

// Holds all that is in a store.
struct StoredState {
  uint64_t epoch = 0;     // the largest ever; 0 for none
  uint64_t last_run = 0;  // the largest number of a run, also of those that were forgotten; 0 for none
  std::map<uint64_t, StoredRun> runs;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RECORDS_H_
