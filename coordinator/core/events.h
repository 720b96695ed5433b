// Defines the input and the output of the coordinator's core: values only.
//
// The shell (or the simulation) turns everything that happens into an Event, gives it to
// CoordinatorCore::Step with the time, and carries the Effects out, in their order. Sessions are numbered by
// the shell; a session's messages arrive in order, once (link.h).
#ifndef WEFT_COORDINATOR_CORE_EVENTS_H_
#define WEFT_COORDINATOR_CORE_EVENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/core_options.h"
#include "coordinator/core/records.h"
#include "coordinator/core/run_plan.h"
#include "proto/session/messages.h"
#include "proto/session/run_info.h"

namespace weft {

using SessionId = uint64_t;

// ---- in

// Submits a run. Answered by a Reply with the same `reply` number. The same non-empty `request` again, with
// the same spec, processes and output, is the same run (its id is replied); with others it is refused with
// AlreadyExists.
struct SubmitRun {
  uint64_t reply = 0;
  std::string request;
  std::shared_ptr<const RunPlan> plan;
  std::string spec;         // passed on to the workers
  int32_t processes = 0;    // 0: one a rank
  std::string output;       // as it was asked for
  RunFolder folder = {};    // of its own; empty for `output`
  std::string file = {};    // the run file's name
  uint64_t id = 0;          // from ReserveRun; 0 for the next number
  std::string run_id = {};  // messages.h, Assign
  QueueTerms terms = {};
};
// Cancels a run. Answered by a Reply: NotFound for an unknown run; a run that ended stays as it is. With
// `save`, a run that has made a step and has an output folder goes on to the next step of which a checkpoint
// can be announced, RunInfo::stop_step, and ends when that is complete (run_stop.h).
struct CancelRun {
  uint64_t reply = 0;
  uint64_t run = 0;
  std::string reason;
  bool save = false;
};
// Orders ranks of a run to a worker, by its name or the number of its process. Answered by a Reply;
// runs.proto lists the errors. The ranks move when the run can begin again without losing a step.
struct MoveRanks {
  uint64_t reply = 0;
  uint64_t run = 0;
  std::vector<Rank> ranks;
  std::string worker;
  std::string reason = {};
};
// Lets a run go on under another schedule of its rule, with the same stages, micro-batches and ranks, when it
// can without losing a step. Not answered: a run that cannot, or has begun again since the question, goes on
// as it is.
struct ReplanRun {
  uint64_t run = 0;
  int32_t restarts = 0;  // of the run when it was measured
  std::shared_ptr<const RunPlan> plan;
  std::string spec;      // as SubmitRun has it, with the schedule
  std::string schedule;  // JSON of the schedule, as AttemptRecord has it
  std::string reason;
  std::string left_links = {};  // for which it moves, as AttemptRecord has them
};
// Has a worker leave, as if it had asked to. Answered by a Reply: NotFound for an unknown worker.
struct DrainWorker {
  uint64_t reply = 0;
  std::string worker;  // as in MoveRanks
  std::string reason = {};
};
// Asks the processes of a run for their spans, which come as Effects::spans. Answered by a Reply when they
// have reported them, or do not (span_requests.h): NotFound for an unknown run.
struct AskSpans {
  uint64_t reply = 0;
  uint64_t run = 0;
};
struct SessionOpened {
  SessionId session = 0;
};
struct SessionMessage {
  SessionId session = 0;
  FromWorker message;
};
// Reports that the connection of a session is gone; it may come back within the grace time.
struct SessionBroken {
  SessionId session = 0;
  std::string reason;
};
struct SessionResumed {
  SessionId session = 0;
};
// Reports that a session is over: the worker said so, or the shell had to end it.
struct SessionClosed {
  SessionId session = 0;
  std::string reason;
};
// Reports the end of a worker process of this machine; sent by the owner of the processes.
struct WorkerExited {
  int64_t pid = 0;
  std::string reason;      // "killed by signal 9", "exited with code 1: <last line>"
  std::string wrote = {};  // last lines of its standard error before that one, "a | b"
};
// Ends the coordinator: every run that has not ended fails, every worker is told to shut down.
struct StopAll {
  std::string reason;
};
struct Tick {};
// Takes other limits for what begins from now on.
struct ChangeLimits {
  CoreLimits limits;
};
// Takes up a run as a store has it. Comes before any other event.
struct RestoreRun {
  StoredRun stored;
  std::shared_ptr<const RunPlan> plan = nullptr;  // of a run that has not ended
  std::string failure = {};                       // reason why such a run cannot go on; it has no plan then
  std::string spec = {};  // of that plan, where it is not the one that was submitted (ReplanRun)
};

using Event = std::variant<SubmitRun, CancelRun, MoveRanks, ReplanRun, DrainWorker, AskSpans, SessionOpened,
                           SessionMessage, SessionBroken, SessionResumed, SessionClosed, WorkerExited,
                           StopAll, Tick, RestoreRun, ChangeLimits>;

// ---- out

struct OutgoingMessage {
  SessionId session = 0;
  FromCoordinator message;
};
struct Reply {
  uint64_t reply = 0;
  absl::Status status;
  uint64_t run = 0;
};
// Jobs that ended for the first time: for traces and logs. The core keeps none.
struct JobsEnded {
  uint64_t run = 0;
  Rank rank = 0;
  int32_t process = 0;
  std::vector<Completion> jobs;
};
// A job that took much longer than its like: a sentence with the times at which it was claimed, ready and
// started.
struct SlowJob {
  uint64_t run = 0;
  std::string sentence;
};
// A run does not get on: why, told once when that begins, and where it ends the attempt.
struct RunStall {
  uint64_t run = 0;
  std::string sentence;
};
// A run goes on under another schedule from the step on.
struct Replanned {
  uint64_t run = 0;
  int32_t step = 0;
  std::shared_ptr<const RunPlan> plan;
  std::string former;  // schedule before
  std::string reason;
};
struct WorkerChange {
  // kBusy: the worker has not reported that it forgot an aborted run, and gets no other one; kBack: now it
  // has.
  enum class Kind { kJoined, kExited, kLost, kBusy, kBack } kind = Kind::kJoined;
  std::string label;   // "process 2 (weft-worker-2, pid 4711 on host a)"
  std::string reason;  // reason of all but kJoined
  uint64_t run = 0;    // run that it served; 0 for none
};
// Asks the shell to end the session; no more of its messages are wanted.
struct CloseSession {
  SessionId session = 0;
  absl::Status status;
};

struct Effects {
  Records records;  // to be durable before anything else of these effects is carried out
  std::vector<OutgoingMessage> messages;
  std::vector<Reply> replies;
  std::vector<RunInfo>
      runs;  // new state of each run whose state, reason or processes changed; with reports when it ended
  std::vector<StepDone> steps;
  std::vector<Validation> validations;  // that are done and have figures
  std::vector<JobsEnded> jobs;
  std::vector<SlowJob> slow_jobs;
  std::vector<RunStall> stalls;
  std::vector<Replanned> replanned;
  std::vector<Report> reports;
  std::vector<Spans> spans;
  // Runs that have ended without having finished, and of which no spans come any more.
  std::vector<uint64_t> spans_complete;
  std::vector<WorkerChange> workers;
  std::vector<RunLogLine> log;  // lines of workers about their runs, without numbers
  std::vector<CloseSession> closed;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_EVENTS_H_
