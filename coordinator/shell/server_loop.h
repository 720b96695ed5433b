// Runs the coordinator's loop: one thread that polls gRPC, steps the core, and carries its effects out.
//
// The thread that takes a message off the stream is the one that decides and writes the answer: no hand-over
// between threads on the way of a job. Everything that is ready is taken first (up to a bound), then the core
// steps once over all of it, then sessions are written. Other threads come in through Post: a mailbox, and an
// alarm on the completion queue that wakes the loop.
//
// With a store, the records of a step are written before anything of it is carried out, and effects keep
// their order: what comes behind records that are being written waits for them, and so do answers that are
// read from the core.
//
// Threads: Post, Submit, Cancel, GetRun, ListRuns from any thread but the loop's; the rest says "loop's
// thread". Failure: the loop ends only by Stop.
#ifndef WEFT_COORDINATOR_SHELL_SERVER_LOOP_H_
#define WEFT_COORDINATOR_SHELL_SERVER_LOOP_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/metrics/heartbeat.h"
#include "base/mutex.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/shell/call.h"
#include "coordinator/shell/health_calls.h"
#include "coordinator/shell/held_effects.h"
#include "coordinator/shell/planner_thread.h"
#include "coordinator/shell/process_watch.h"
#include "coordinator/shell/replanner.h"
#include "coordinator/shell/run_lines.h"
#include "coordinator/shell/runs_calls.h"
#include "coordinator/shell/server_options.h"
#include "coordinator/shell/session_table.h"
#include "coordinator/shell/trace_reader.h"
#include "proto/wire/runs_codec.h"
#include "weft/v1/runs.grpc.pb.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft {

class CoordinatorMetrics;

class ServerLoop {
 public:
  using Answer = std::function<void(absl::StatusOr<uint64_t> run)>;  // called on the loop's thread

  ServerLoop(CoordinatorServerOptions options, std::unique_ptr<grpc::ServerCompletionQueue> queue,
             SessionService* sessions, v1::Runs::AsyncService* runs, HealthCalls::Service* health);
  ~ServerLoop();

  // Begins to serve. `caller` tells the callers of the run API.
  void Start(CallerName caller);
  // Ends the thread after the gRPC server was shut down; the thread drains the completion queue.
  void Join();

  // Runs `work` on the loop's thread, before the next step of the core. Returns false, and never runs it,
  // once the loop has ended.
  bool Post(std::function<void()> work);

  // Adds an event. Loop's thread, or from `Post`.
  void Add(Event event) { events_.push_back(std::move(event)); }
  void Submit(SubmitRequest request, Answer answer);
  // Cancels a run; `save` as in CancelRun.
  void Cancel(uint64_t run, std::string reason, bool save, Answer answer);
  // Moves ranks, or has a worker leave; `reply` is chosen here.
  void Move(MoveRanks order, Answer answer);
  void Drain(DrainWorker order, Answer answer);
  // Reads the trace of a run, whose processes are asked what they know first. Calls `answer` on the loop's
  // thread, or never if the loop ends before.
  void ReadTrace(uint64_t run, TraceReader::Done answer);
  const CoordinatorCore& core() const { return core_; }
  // Calls `answer`, which reads from the core, as soon as all that the core has decided so far is durable.
  void WhenDurable(std::function<void()> answer);
  // Says in the run, if it has ended, what came of the writing of its results.
  void AddOutputEnd(RunInfo* run) const;
  int64_t unix_minus_monotonic() const { return unix_minus_monotonic_; }
  // Says that the server serves no more, to those that ask for its health. Loop's thread.
  void StopServing() { health_.StopServing(); }
  bool settled() const { return held_.empty() && sessions_.settled() && health_.settled(); }
  // Returns the heartbeat. Any thread.
  const Heartbeat& heart() const { return heart_; }
  // Adds a line of the coordinator to a run's log; `routine` as in RunLogLine. Loop's thread.
  void Log(uint64_t run, LogEntry entry, bool routine = false);
  // Returns lines of a run's log, which is empty for a run that nothing was said about.
  RunLogPart LogOf(uint64_t run, uint64_t after, Rank rank) const;
  // Returns the events of a run: the last lines of the coordinator in its log.
  RunLogPart EventsOf(uint64_t run) const;
  // Returns what tells these logs from those of a coordinator that was started again.
  uint64_t log_id() const { return log_id_; }
  // Hears every event of a run; called with nothing after it was removed.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void Hear(const RunEvent& event) = 0;
  };
  void AddWatcher(uint64_t run, Watcher* watcher) { watchers_.emplace(run, watcher); }
  void RemoveWatcher(uint64_t run, Watcher* watcher);

 private:
  void Run();
  void TakeTag(void* tag, bool ok);
  bool WaitForTag(void** tag, bool* ok);
  void TakeTags();
  bool TakePosted();
  // Carries the effects out, or holds them until their records are durable.
  void Apply(Effects effects);
  // Sends those of the messages that need not wait for the store, if so little waits for it that they may.
  // Returns false if one of them is kept back.
  bool SendAhead(std::vector<OutgoingMessage>* messages);
  void CarryOut(Effects effects);
  void Send(OutgoingMessage message);
  // Counts a call of the run API as answered. `came_ns`: when it came; none for a stream.
  void HearCall(const std::string& method, const absl::Status& status, std::optional<int64_t> came_ns);
  void Note(const JobsEnded& jobs) const;
  void Note(const StepDone& step) const;
  void Tell(uint64_t run, const RunEvent& event);
  void TellLog(RunLogLine line);
  void TellLog(const Effects& effects);
  void AcceptSession();
  void WatchProcess(SessionId session, int64_t pid);
  void EndQueue(int64_t now);
  int64_t NextDeadline() const;

  CoordinatorServerOptions options_;  // without `restored`; any thread reads it, since nothing changes it
  const int64_t unix_minus_monotonic_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  SessionService* const session_service_;
  v1::Runs::AsyncService* const runs_service_;
  HealthCalls::Service* const health_service_;

  Heartbeat heart_;

  // Members of the loop's thread only.
  CoordinatorCore core_;
  std::vector<Event> events_;
  SessionTable sessions_;
  HealthCalls health_;
  std::set<std::unique_ptr<Call>, std::less<>> calls_;
  std::map<uint64_t, Answer> answers_;
  uint64_t next_reply_ = 1;
  std::multimap<uint64_t, Watcher*> watchers_;
  const uint64_t log_id_;
  std::map<uint64_t, RunLog> logs_;  // by run
  RunLines lines_;
  HeldEffects held_;  // until their records are durable
  // The way by which the store's thread reports to this loop, while it lives.
  struct Gate {
    Mutex mu;
    ServerLoop* loop ABSL_GUARDED_BY(mu) = nullptr;
  };
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  uint64_t written_ = 0;  // number of the last records that were handed to the store
  std::unique_ptr<CoordinatorMetrics> metrics_;
  std::optional<int64_t> turn_begun_ns_;  // time when the first operation of this turn had ended
  int64_t spin_end_ns_ = 0;               // time until which the loop polls without sleeping
  bool grants_ = false;                   // true once this turn has sent a grant
  int64_t end_due_ = INT64_MAX;           // time when the queue ends at the latest, once the loop is over
  bool queue_ended_ = false;

  Mutex mu_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mu_);
  bool over_ ABSL_GUARDED_BY(mu_) = false;

  Replanner replanner_;
  PlannerThread planner_;
  TraceReader traces_;
  std::unique_ptr<ProcessWatch> processes_;  // of this machine; null where their owner reports their end
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SERVER_LOOP_H_
