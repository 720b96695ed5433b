// Runs the real coordinator core, real worker cores and the real links between them for golden transcripts,
// one event at a time, and writes what each core does onto a page.
//
// It plays the shells and the network. Messages, tensors and the work of shells (tasks: to prepare, to
// compute a job, to write a snapshot) lie still until a command moves them; time passes by Advance alone.
// No values are computed: a tensor is its name. A worker by hand has a session and no core.
//
// Not thread-safe. Failure: NotFound for a worker, packet or task that is not there.
#ifndef WEFT_TESTS_GOLDEN_TRANSCRIPT_CORES_H_
#define WEFT_TESTS_GOLDEN_TRANSCRIPT_CORES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/coordinator_core.h"
#include "tests/golden/transcript_page.h"
#include "tests/simulation/joined_cores.h"
#include "worker/core/worker_core.h"

namespace weft {

class TranscriptCores {
 public:
  explicit TranscriptCores(TranscriptPage* page);
  ~TranscriptCores();

  // Makes the coordinator anew; before any other event. The link's options are those of later sessions.
  void SetOptions(const CoreOptions& core, const LinkOptions& link);
  // Gives the coordinator's core events, at once.
  void StepCoordinator(std::vector<Event> events);
  // Lets workers read this of the spec that an assignment brings.
  void AddShape(const std::string& spec, WorkerCore::RunShape shape) { shapes_[spec] = std::move(shape); }

  struct Worker;
  // Opens a session for a worker process and sends its Hello; `name` stands for it in commands.
  void Connect(const std::string& name, Hello hello, bool by_hand);
  absl::StatusOr<Worker*> Find(const std::string& name);

  // Sends a message that the worker's core did not make.
  void Send(Worker& w, FromWorker message);
  void Fail(Worker& w, const Failed& failure);
  void Break(Worker& w, const std::string& reason);
  void Resume(Worker& w);
  // Kills the coordinator, with all that is in flight, and begins another one with what is stored. Each
  // worker returns to it by itself.
  void RestartCoordinator();
  void Return(Worker& w);

  // The oldest packet in flight from the worker (`up`), or to it, arrives, is lost, or is doubled.
  absl::Status Deliver(Worker& w, bool up);
  absl::Status Drop(Worker& w, bool up);
  absl::Status Duplicate(Worker& w, bool up);
  // Every tensor in flight arrives.
  void Transfer();
  // Everything in flight arrives, and what follows from it, until nothing is in flight.
  void Settle();

  // Result of a task.
  struct End {
    std::optional<double> loss;
    std::string failure;
  };
  // Ends the named task, or the worker's first.
  absl::Status EndTask(Worker& w, const std::string& task, const End& end);
  // Settles and ends tasks, at most so many: in rounds, one of each worker at a time.
  void Run(int most);

  // Lets time pass, with all deadlines in it.
  void Advance(int64_t ns);

  // Write what there is: packets and tensors in flight, tasks, workers, runs, totals.
  void ListNetwork();
  void ListTasks();
  void ListWorkers();
  void ListRuns();
  void ListTotals();

  // The run that was last assigned to the worker, and the token of its lease of the rank.
  static uint64_t RunOf(const Worker& w);
  static Token TokenOf(const Worker& w, Rank rank);
  static SessionId SessionOf(const Worker& w);
  static int64_t PidOf(const Worker& w);

 private:
  struct Task {
    std::string name;
    std::function<void(const End&)> end;
    std::function<bool()> can_end;  // empty: always
  };
  struct FlyingTensor {
    TensorKey key;
    int32_t process;  // to which it goes
  };

  void Carry(Worker& w, WorkerEffects effects);
  void CarryOne(Worker& w, const WorkerEffect& effect);
  // Calls the worker's core, and carries out what it says.
  template <typename Call>
  void Ask(Worker& w, Call call);
  void Prepare(Worker& w, const PrepareEffect& e);
  void Start(Worker& w, const StartEffect& e);
  void EndJob(Worker& w, const StartEffect& e, int64_t began, const End& end);
  void AwaitCollective(Worker& w, const StartEffect& e);
  void Save(Worker& w, int step);
  void Forget(Worker& w);
  void Want(Worker& w, const WantEffect& e);
  void Publish(const PublishEffect& e);
  void Write(const Effects& effects);
  void WriteRun(const RunInfo& info);
  void SendAll(std::vector<OutgoingMessage> messages);
  void Pump(Worker& w);
  void PumpAll();
  void ArriveUp(Worker& w, const Packet<FromWorker>& packet);
  void ArriveDown(Worker& w, const Packet<FromCoordinator>& packet);
  void Arrive(const FlyingTensor& tensor);
  Worker* BySession(SessionId session);
  std::string NameOf(SessionId session);
  int64_t NextDeadline() const;
  void Check(const absl::Status& status);

  TranscriptPage* const page_;
  LinkOptions link_;
  CoreOptions options_;
  std::unique_ptr<CoordinatorCore> coordinator_;
  StoredState stored_;  // everything is on the disk at once
  std::map<uint64_t, std::shared_ptr<const RunPlan>> plans_;
  SessionId sessions_ = 0;                        // number of the last
  std::vector<std::unique_ptr<Worker>> workers_;  // in the order of their sessions, ended ones too
  std::map<std::string, WorkerCore::RunShape> shapes_;
  std::map<uint64_t, std::string> runs_;  // last words about each run
  std::map<TensorKey, int32_t> wanted_;   // process that wants a tensor which is not published
  std::set<TensorKey> published_;         // tensors that nobody has wanted yet
  std::deque<FlyingTensor> tensors_;
  // Number of members that have begun a collective, by run, step, stage and kind.
  std::map<std::tuple<uint64_t, int, int, JobKind>, int> begun_;
  static constexpr int64_t kStart = 1'000'000'000;
  int64_t now_ = kStart;
};

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_TRANSCRIPT_CORES_H_
