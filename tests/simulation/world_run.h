// Runs a world: private to tests/simulation, shared by the files that implement it. world.cc plays the
// network, the coordinator's shell and the ends; world_jobs.cc computes jobs; world_tensors.cc moves and
// keeps values; world_snapshots.cc saves them; world_checks.cc says what must hold.
#ifndef WEFT_TESTS_SIMULATION_WORLD_RUN_H_
#define WEFT_TESTS_SIMULATION_WORLD_RUN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "tests/simulation/joined_cores.h"
#include "tests/simulation/timed_actions.h"
#include "tests/simulation/world.h"
#include "tests/simulation/world_random.h"
#include "tests/simulation/world_values.h"
#include "worker/core/worker_core.h"
#include "worker/shell/loop/taken_tensors.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/transfer_table.h"

namespace weft {

// Returns the measured bytes that a forward of the stage keeps: less than was counted.
inline int64_t MeasuredActivationBytes(const RunTerms& terms, int stage) {
  return terms.memory->activation_bytes[stage] - 7 * (stage % 5);
}

// The numbers of replies to orders, beside the submission's 1 and the stop's 2.
inline constexpr uint64_t kDrainReply = 3, kMoveReply = 4;

class World {
 public:
  explicit World(const WorldOptions& options);
  WorldResult Run();

 private:
  // The sum of the gradients of one step, in a state that migrates.
  struct Sum {
    Value value = 0;
    int step = -1, next = 0;
  };
  struct State {
    std::map<int, Value> weights;
    Sum sum;
  };
  using CopyKey = std::tuple<uint64_t, int, StatePart>;  // epoch and step
  struct Process {
    Process(int n, int64_t id, WorkerCore::ParseSpec parse, int launch_ahead)
        : number(n), pid(100 + id), core(std::move(parse), launch_ahead) {}
    void ForgetValues() {
      inbox.clear();
      untaken.clear();
      there.clear();
      table.BeginEpoch(0, 0);
      held.BeginEpoch(0, 0);
      offered.clear();
      weights.clear();
      put_aside.clear();
      sums.clear();
      outputs.clear();
      state_sums.clear();
      pieces.clear();
      copies_to_come.clear();
    }
    // Returns the number of its transport, by which its peers know it: its place in processes_, from 1 on.
    uint64_t sender() const { return static_cast<uint64_t>(pid - 100); }
    const int number;
    const int64_t pid;
    bool dead = false, joined = false, leaving = false;
    WorkerCore core;
    std::unique_ptr<JoinedSession> session;  // null before it has joined
    std::map<TensorKey, Value> inbox;
    // Owners of tensors in the inbox whose makers want to know when all have taken them.
    std::map<TensorKey, std::shared_ptr<void>> untaken;
    TakenTensors taken;                  // of its own ranks
    std::map<TensorKey, int64_t> there;  // times when the device has made them
    // The data plane, as transports have it: each tensor has its value for an owner.
    TransferTable table;
    HeldOffers held;
    std::set<TensorKey> offered;  // tensors that wait, with their producer, for a want
    bool looks = false;           // true while it is to look at its wants
    // Held weights, by rank and stage: by version.
    std::map<std::pair<Rank, int>, std::map<int, Value>> weights;
    // The version that the newest saved update of a rank and stage began with, taken before it.
    std::map<std::pair<Rank, int>, std::pair<int, Value>> put_aside;
    // Sums of reduce and gradient-consuming jobs.
    std::map<Job, Value> sums;
    std::map<std::pair<Rank, Job>, Value> outputs;   // forward outputs that wait for their backward
    std::map<std::pair<Rank, int>, Sum> state_sums;  // of states that migrate, beside their `weights`
    std::map<int, int> pieces;                       // of snapshots, by step: that are to come
    std::map<int, int> copies_to_come;               // likewise of copies
    std::map<CopyKey, std::map<int, Value>> copies;  // the versions of a part, beyond the end of an attempt
    uint64_t copies_epoch = 0;  // of the attempt that made the copies with which the present one begins
    bool validating = false;
    int64_t up_timer = -1, down_timer = -1;
  };
  struct Outputs {
    std::optional<Value> kept_weights = std::nullopt;
    Value activation = 0, input_gradient = 0, gradient = 0, sum = 0, norm = 0, state = 0;
    int64_t there = 0;                               // time when the device has made them
    std::shared_ptr<void> gradient_owner = nullptr;  // if it is followed
  };
  // The ends of the work of one rank's device.
  struct Device {
    int64_t all = 0;  // end of everything
    // End of the work behind which the newest job comes that is not beside another.
    int64_t behind = 0;
    int64_t overlapped = 0;         // end of the work behind which a job beside that one comes
    int64_t reported[2] = {0, 0};   // end of the last job that has ended, in turn and beside
    std::vector<StartEffect> jobs;  // jobs not reported yet, in the order of starts
  };

  void At(int64_t time, std::function<void()> action) { actions_.Add(time, std::move(action)); }
  // Likewise, unless the process is dead by then.
  void AtOf(Process& p, int64_t time, std::function<void()> action) {
    At(time, [&p, action = std::move(action)] {
      if (!p.dead) action();
    });
  }
  // Likewise, unless the process, or any other, has begun another attempt by then.
  void AtInAttempt(Process& p, int64_t time, std::function<void()> action) {
    AtOf(p, time, [this, &p, epoch = p.core.epoch(), action = std::move(action)] {
      if (p.core.epoch() == epoch && !Lags(p)) action();
    });
  }
  // Returns true while the process is in an attempt though others have begun the next one: where there are
  // spare processes, an attempt begins without those that have not ended the one before. Results of such a
  // process are not used.
  bool Lags(const Process& p) const { return p.core.has_run() && p.core.epoch() < epoch_; }
  void Note(Value what) { trace_ = Mix(trace_, Mix(static_cast<Value>(now_), what)); }
  void Problem(const std::string& what) {
    if (problem_.empty()) problem_ = absl::StrCat(what, " at ", now_, " ns");
  }

  void StartProcess(int number);
  Process& AnyProcess();
  void Join(Process& p);
  void BeginSession(Process& p, bool returns);
  void ReturnTo(Process& p);
  void KillAny();
  void Kill(Process& p);
  // Returns true if it is the bad job, which goes wrong then: nothing comes of it.
  bool GoesWrong(Process& p, const StartEffect& start);
  void Leave();
  void Drain();
  void MoveRank();
  std::vector<int32_t> PlacementToldBy(const absl::StatusOr<RunInfo>& run);
  void TakeMoveReply(const Reply& reply);
  void CheckPlacement(const Assign& assign);
  void Exit(Process& p);
  void Replace(Process& p, int64_t time);
  void CheckRestart(const RunInfo& run);
  void BeginAttempt(const Assign& assign);
  void Pump(Process& p);
  template <typename LinkType, typename Deliver>
  void PumpLink(LinkType& link, int64_t* timer, Process& p, Deliver deliver);
  void ToCoordinator(Process& p, Packet<FromWorker> packet);
  void ToWorker(Process& p, Packet<FromCoordinator> packet);
  void StartCore(uint64_t epoch);
  void Submit();
  void StepCoordinator(std::vector<Event> events);
  void StepFormer(std::vector<Event> events);
  void Hold(Effects effects);
  void SendTo(OutgoingMessage m);
  void CarryOut(Effects effects);
  void KillCoordinator();
  void RestartCoordinator();
  void WakeCoordinator();
  void Prepare(Process& p, const PrepareEffect& effect);
  void Carry(Process& p, WorkerEffects effects, const Outputs* outputs);
  void StartJob(Process& p, const StartEffect& start);
  void EndJob(Process& p, const StartEffect& start, int64_t began, Outputs outputs);
  void StartLaggingJob(Process& p, const StartEffect& start);
  void EndLaggingJob(Process& p, const StartEffect& start);
  void LaunchJob(Process& p, const StartEffect& start);
  int64_t GiveToDevice(Process& p, const StartEffect& start, Outputs* outputs);
  void LaunchedJobEnds(Process& p, const StartEffect& start, int64_t began, int64_t ended);
  bool LaunchesAhead() const { return options_.launch_ahead > 1; }
  Outputs Compute(Process& p, const StartEffect& start);
  void Publish(Process& p, const PublishEffect& e, const Outputs* outputs);
  Value HeldWeights(Process& p, Rank rank, int stage, int version);
  std::shared_ptr<void> Give(Process& p, const TakenTensor& note);
  void UpdateWeights(Process& p, const StartEffect& start, std::optional<Value> installed,
                     const std::vector<Value>& sums);
  void DropWeights(Process& p, const DropEffect& e);
  void CheckUnread(Rank rank, int stage, int version);
  int NewestAtBegin(Rank rank, int stage) const;
  void BeginWeights(Process& p, Rank rank, int stage, int part);
  // world_snapshots.cc
  void ExpectPieces(Process& p, const SnapshotEffect& e);
  void TakeSnapshot(Process& p, const StartEffect& start);
  void SendSaved(Process& p, int step);
  void Seal(Process& p, const SealEffect& e);
  // world_copies.cc
  void TakeCopy(Process& p, const StartEffect& start);
  std::map<int, Value> CopyOf(const CopyKey& key) const;
  void KeepArrived(Process& p, const TensorKey& key, Value value);
  void ResumeWith(Process& p, const ResumeEffect& e);
  void DropCopies(Process& p, const DropCopiesEffect& e);
  Value CopyToSend(Process& p, const TensorKey& key);
  CopyKey KeyOfCopy(const Process& p, const TensorKey& key) const;
  void Validate(Process& p, int step);
  void SendValidation(Process& p, const Validation& validation);
  void CheckValidations();
  void CheckSnapshots();
  void ReceiveState(Process& p, const StartEffect& start);
  void PassStateOn(Process& p, const StartEffect& start, Outputs* outputs);
  void AddToState(Process& p, const StartEffect& start, Value gradient);
  Value TakeStateSum(Process& p, const StartEffect& start);
  // world_transfers.cc
  void BeginTransfers(Process& p, const Assign& assign);
  void SendBetween(uint64_t to, std::function<void(Process&)> handle);
  void Want(Process& p, const WantEffect& e);
  void SendWant(Process& p, PeerId producer, const TensorKey& key, bool again);
  void TakeWant(Process& p, uint64_t from, const TensorKey& key, bool again);
  void Offer(Process& p, int to, const TensorKey& key, Value value, std::shared_ptr<void> owner = nullptr);
  void HandOver(Process& p, const Delivery& delivery);
  void SendOffer(Process& p, uint64_t offer);
  void TakeTensor(Process& p, uint64_t from, const TensorKey& key, Value value, uint64_t offer);
  void Arrive(Process& p, const TensorKey& key, Value value);
  void LookLater(Process& p);
  void Look(Process& p);
  void SendReports(Process& p);
  void CountActivationBytes(const StartEffect& start, bool ended);
  void CountReceivedBytes(const TensorKey& wanted);
  void FollowGradient(Process& p, const StartEffect& start, Outputs* outputs);
  void TellOfTakenTensors();
  void CountFetch(const TensorKey& key);
  void CountRunning(const StartEffect& start);
  void CheckStart(const StartEffect& start);
  void CountLaunched(const StartEffect& start);
  void CheckDeviceOrder(const StartEffect& start, int64_t began);
  bool HasEnded(const Job& job) const;
  // Returns true if ranks of this one's process may go on behind the job.
  bool IsOver(const Job& job, Rank rank) const;
  void CheckEnd();
  void CheckVersions(Rank rank, int stage, std::map<int, Value> versions);
  // Returns what the update's rank saves behind it: the versions that it holds, and the one put aside.
  std::map<int, Value> SavedVersions(Process& p, const StartEffect& start);
  // Returns the oldest version that a step may read when `newest` is the newest.
  int OldestRead(int stage, int newest) const {
    return std::max(0, newest - plan_->graph.schedule().MaxStaleness(stage));
  }

  const WorldOptions options_;
  Random random_;
  std::shared_ptr<const RunPlan> submitted_, plan_;  // as submitted; of the present attempt
  int first_step_;                                   // of the present attempt
  uint64_t epoch_ = 0;
  std::vector<Held> plain_;                       // by version
  std::unique_ptr<CoordinatorCore> coordinator_;  // null while it is dead
  int coordinator_life_ = 0;
  // The coordinator before, where it was only stopped, and the number of its last session.
  std::unique_ptr<CoordinatorCore> former_;
  SessionId former_sessions_ = 0;
  StoredState stored_;
  int64_t durable_at_ = 0, carried_out_at_ = 0;      // times of the last effects that are held
  std::vector<std::unique_ptr<Process>> processes_;  // also dead ones
  std::map<SessionId, Process*> sessions_;           // those whose sessions they were
  std::map<int, Process*> process_at_;               // those that live, by number
  TimedActions actions_;
  int64_t now_ = 1;
  int64_t coordinator_timer_ = -1;
  Value trace_ = 0;
  std::string problem_;
  std::set<Job> started_, launched_, ended_, counted_;
  std::set<Job> counted_now_;  // in the present attempt
  std::map<Job, int64_t> device_end_;
  std::map<Rank, Device> devices_;
  std::vector<int32_t> process_of_rank_;
  std::pair<Rank, int> move_;         // the last one that was ordered: a rank and the number of a process
  std::vector<int32_t> before_move_;  // processes of the ranks then
  uint64_t move_epoch_ = 0,
           ordered_epoch_ = 0;       // of the attempt that this order, and the accepted one, ended
  std::vector<int32_t> ordered_to_;  // processes of the ranks by the last order that was accepted
  std::map<Rank, std::vector<Job>> running_;
  std::map<Job, int64_t> began_;              // starts of these
  std::map<Rank, int64_t> activation_bytes_;  // with copies from other ranks, and gradients that leave
  std::map<Job, int> given_;                  // tensors that readers have, by each job that waits for them
  std::map<Rank, std::set<Job>> received_;    // forwards whose inputs were wanted, until their backward
  std::map<Rank, std::set<Job>> fetching_;    // jobs that have not ended and whose weights were wanted
  // States on their way, by the value that stands for them in messages.
  std::map<Value, State> moving_;
  std::map<Value, std::map<int, Value>> sent_copies_;  // likewise
  std::map<int, Rank> holder_;                         // holder of the state of each stage, if a rank has it
  int bad_starts_ = 0;                                 // of the bad job
  bool finished_ = false;
  int steps_done_ = 0;
  int stop_step_ = -1;
  int failed_validations_ = 0;                 // as the coordinator tells
  std::set<int> stops_;                        // all such steps, also of attempts from which a process leaves
  std::set<std::tuple<int, int, int>> saved_;  // saved parts by step, stage and member
  std::set<int> sealed_, dropped_;
  std::set<int> aside_;      // steps whose weights wait to be validated
  std::set<int> validated_;  // or told to have failed
  std::set<int> failing_;    // steps of which a part could not be saved
  WorldResult result_;
};

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_WORLD_RUN_H_
