#include "worker/core/worker_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/require.h"
#include "worker/core/unsettled_work.h"
#include "worker/core/worker_run.h"

namespace weft {
namespace {

// Returns why this process cannot take the assignment; "" if it can.
std::string WhyRefused(const Assign& assign, LocalRun::Shape* shape) {
  if (static_cast<int>(assign.process_of_rank.size()) != shape->schedule.scheme.ranks) {
    return absl::StrFormat("the assignment places %d ranks, the schedule has %d",
                           assign.process_of_rank.size(), shape->schedule.scheme.ranks);
  }
  for (const KeptPart& kept : assign.kept) {
    const int stages = shape->schedule.scheme.stages, ranks = shape->schedule.scheme.ranks;
    if (kept.part.stage >= stages || kept.part.part >= ranks)
      return absl::StrFormat("the assignment names part %d of stage %d, which the run does not have",
                             kept.part.part, kept.part.stage);
  }
  return UseJointOperations(assign, shape);
}

}  // namespace

class WorkerCore::SendNote {
 public:
  SendNote(WorkerCore* core, const WorkerEffects* out) : core_(*core), out_(*out), first_(out->size()) {}
  ~SendNote() {
    for (size_t i = first_; i < out_.size(); ++i) {
      if (const auto* send = std::get_if<SendEffect>(&out_[i])) core_.NoteSent(send->message);
    }
  }
  SendNote(const SendNote&) = delete;
  SendNote& operator=(const SendNote&) = delete;

 private:
  WorkerCore& core_;
  const WorkerEffects& out_;
  const size_t first_;
};

void WorkerCore::NoteSent(const FromWorker& message) {
  if (unsettled_ == nullptr) return;
  if (const auto* held = std::get_if<CopiesHeld>(&message))
    return copies_.Note(*held, run_->facts().assignment());
  unsettled_->Sent(message);
}

WorkerCore::WorkerCore(ParseSpec parse, int launch_ahead)
    : parse_(std::move(parse)), launch_ahead_(launch_ahead) {}
WorkerCore::~WorkerCore() = default;

bool WorkerCore::has_results() const { return run_ != nullptr && run_->has_results(); }
bool WorkerCore::AwaitsGrants() const { return run_ != nullptr && run_->AwaitsGrants(); }

uint64_t WorkerCore::run_id() const { return run_ ? run_->facts().assignment().run : 0; }
uint64_t WorkerCore::epoch() const { return run_ ? run_->facts().assignment().epoch : 0; }
const Graph* WorkerCore::graph() const { return run_ ? &run_->facts().graph() : nullptr; }

std::vector<Rank> WorkerCore::ranks() const { return run_ ? run_->ranks() : std::vector<Rank>(); }

const RankClock& WorkerCore::ClockAt(int64_t now, Rank rank) { return run_->ClockAt(now, rank); }

std::vector<IdleSpan> WorkerCore::idle_spans(Rank rank) const {
  const auto& spans = run_->StateOf(rank).clock.spans();
  return {spans.begin(), spans.end()};
}

std::vector<TransferSpan> WorkerCore::transfer_spans(Rank rank) const {
  const auto& spans = run_->StateOf(rank).transfers;
  return {spans.begin(), spans.end()};
}

int WorkerCore::peak_activations(Rank rank) const { return run_->StateOf(rank).activations.peak(); }
int WorkerCore::peak_weight_versions(Rank rank) const { return run_->versions().Peak(rank); }
int WorkerCore::weight_versions(Rank rank) const { return run_->versions().Held(rank); }

bool WorkerCore::IsLive(uint64_t run) const { return run_ && run == run_id() && !run_->failed(); }

void WorkerCore::OnMessage(int64_t now, const FromCoordinator& message, WorkerEffects* out) {
  const SendNote note(this, out);
  if (const auto* assign = std::get_if<Assign>(&message)) return OnAssign(now, *assign, out);
  if (const auto* grant = std::get_if<Grant>(&message)) return OnGrant(now, *grant, out);
  if (const auto* id = std::get_if<GroupId>(&message)) return OnIdOfGroup(*id, out);
  if (const auto* shutdown = std::get_if<Shutdown>(&message)) {
    out->push_back(ExitEffect{shutdown->reason});
    return;
  }
  if (const auto* finish = std::get_if<Finish>(&message)) {
    if (!IsLive(finish->run) || run_->finishing()) return;
    run_->Finish(now);
    out->push_back(FinishEffect{});
    return;
  }
  if (const auto* take = std::get_if<TakeSnapshot>(&message)) return OnTakeSnapshot(*take, out);
  if (const auto* settled = std::get_if<Settled>(&message)) {
    if (unsettled_ != nullptr) unsettled_->Settle(*settled);
    return;
  }
  if (const auto* seal = std::get_if<SealCheckpoint>(&message)) {
    if (IsLive(seal->run) && unsettled_->Asked(*seal, out))
      out->push_back(SealEffect{seal->step, seal->keep, seal->drop, seal->validate, seal->passing});
    return;
  }
  if (const auto* validate = std::get_if<Validate>(&message)) {
    if (!IsLive(validate->run)) return;
    run_->OnValidate(validate->step);
    if (unsettled_->Asked(*validate, out)) out->push_back(ValidateEffect{validate->step});
    return;
  }
  if (const auto* drop = std::get_if<DropCopies>(&message)) {
    copies_.Drop(*drop);
    out->push_back(DropCopiesEffect{drop->run, drop->epoch, drop->step});
    return;
  }
  if (const auto* tell = std::get_if<TellSpans>(&message)) return OnTellSpans(now, *tell, out);
  if (const auto* abort = std::get_if<Abort>(&message)) return OnAbort(*abort, out);
}

void WorkerCore::OnTellSpans(int64_t now, const TellSpans& tell, WorkerEffects* out) {
  if (!run_ || run_id() != tell.run) return;
  Spans spans{tell.run, {}};
  for (const Rank rank : ranks()) {
    ClockAt(now, rank);  // the present interval counts too
    spans.ranks.push_back({rank, idle_spans(rank), transfer_spans(rank)});
  }
  out->push_back(SendEffect{std::move(spans)});
}

void WorkerCore::OnAssign(int64_t now, const Assign& assign, WorkerEffects* out) {
  const auto refuse = [&](std::string reason) {
    out->push_back(SendEffect{Failed{assign.run, std::move(reason)}});
  };
  if (run_ && (run_->aborted() || run_->finishing())) {
    next_ = assign;
    return;
  }
  if (run_) return refuse(absl::StrCat("this process still works on run ", run_id()));
  absl::StatusOr<RunShape> shape = parse_(assign.spec);
  if (!shape.ok()) return refuse(std::string(shape.status().message()));
  if (std::string why = WhyRefused(assign, &*shape); !why.empty()) return refuse(std::move(why));
  run_ = std::make_unique<WorkerRun>(now, assign, *std::move(shape), launch_ahead_);
  unsettled_ = std::make_unique<UnsettledWork>(assign);
  copies_.BeginRun(assign.run);
  out->push_back(run_->Preparation());
}

void WorkerCore::OnPrepared(int64_t now, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) run_->OnPrepared(now, out);
}

void WorkerCore::OnResumed(int64_t now, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) run_->OnResumed(now, out);
}

void WorkerCore::OnCopiesMade(int64_t now, int step, const std::string& failure, WorkerEffects* out) {
  const SendNote note(this, out);
  if (!run_ || run_->failed()) return;
  if (failure.empty()) return run_->OnCopiesMade(step, out);
  OnFailure(now, {0, absl::StrCat("the copies of step ", step, " could not be made: ", failure)}, out);
}

void WorkerCore::OnGrant(int64_t now, const Grant& grant, WorkerEffects* out) {
  if (!run_ || !run_->Takes(grant)) {
    ++stale_grants_;
  } else if (!run_->failed()) {
    unsettled_->Granted(grant.rank, grant.jobs.size());
    run_->OnGrant(now, grant, out);
  }
}

void WorkerCore::OnAbort(const Abort& abort, WorkerEffects* out) {
  if (next_.has_value() && next_->run == abort.run) {
    next_.reset();
    next_ids_.clear();
  }
  if (run_ && abort.run == run_id()) return run_->Abort(out);
  out->push_back(SendEffect{Forgotten{abort.run}});
}

bool WorkerCore::GoesOn() const {
  return run_ && !run_->aborted() && !run_->finishing() && unsettled_->can_return();
}

void WorkerCore::Return(WorkerEffects* out) {
  next_.reset();
  next_ids_.clear();
  copies_.Tell(out);
  if (GoesOn()) return unsettled_->Tell(out);
  if (!copies_.empty()) out->push_back(SendEffect{Reattach{}});
  if (run_) run_->Abort(out);
}

void WorkerCore::OnIdOfGroup(const GroupId& id, WorkerEffects* out) {
  if (next_.has_value() && next_->run == id.run && next_->epoch == id.epoch) {
    next_ids_.push_back(id);
  } else if (run_ && run_id() == id.run && epoch() == id.epoch) {
    if (!run_->failed()) out->push_back(JoinEffect{id.group, id.bytes});
  } else {
    ++stale_grants_;
  }
}

void WorkerCore::OnTensor(int64_t now, const TensorKey& key, const TensorArrival& arrival,
                          WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) run_->OnTensor(now, key, arrival, out);
}

void WorkerCore::OnJobLaunched(int64_t now, Rank rank, const Job& job, bool last,
                               std::optional<int64_t> activation_bytes, WorkerEffects* out) {
  const SendNote note(this, out);
  Require(run_ != nullptr, "a job is launched before its run is forgotten");
  run_->OnJobLaunched(now, rank, job, last, activation_bytes, out);
}

void WorkerCore::OnJobDone(int64_t now, const JobDone& done, WorkerEffects* out) {
  const SendNote note(this, out);
  Require(run_ != nullptr, "a job ends before its run is forgotten");
  run_->OnJobDone(now, done, out);
}

void WorkerCore::OnTensorTaken(int64_t now, const TakenTensor& taken, WorkerEffects* out) {
  const SendNote note(this, out);
  if (IsLive(taken.run) && epoch() == taken.epoch) run_->OnTensorTaken(now, taken, out);
}

bool WorkerCore::AwaitsTaking(const Job& job) const { return run_ && run_->AwaitsTaking(job); }

void WorkerCore::OnGroupId(int group, const std::string& id, WorkerEffects* out) {
  if (run_ && !run_->failed()) out->push_back(SendEffect{GroupId{run_id(), epoch(), group, id}});
}

void WorkerCore::OnJointOperationDone(int64_t now, Rank rank, const Job& job, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) run_->OnJointOperationDone(now, rank, job, out);
}

void WorkerCore::OnTakeSnapshot(const TakeSnapshot& take, WorkerEffects* out) {
  if (!IsLive(take.run) || !unsettled_->Asked(take, out)) return;
  if (take.step == run_->facts().steps()) {
    out->push_back(SaveEffect{take.step});
    return;
  }
  const int pieces = run_->AnnounceSnapshot(take.step);
  if (pieces < 0) return OnSnapshotSaved(take.step, "it was announced too late", out);
  if (pieces == 0) return OnSnapshotSaved(take.step, "", out);
  out->push_back(SnapshotEffect{take.step, pieces});
}

void WorkerCore::OnSnapshotSaved(int step, const std::string& failure, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) out->push_back(SendEffect{SnapshotSaved{run_id(), step, failure}});
}

void WorkerCore::OnSealed(int step, const std::string& failure, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) out->push_back(SendEffect{CheckpointSealed{run_id(), step, failure}});
}

void WorkerCore::OnValidation(Validation validation, WorkerEffects* out) {
  const SendNote note(this, out);
  if (run_ && !run_->failed()) out->push_back(SendEffect{std::move(validation)});
}

void WorkerCore::OnFinished(std::vector<RankReport> reports, WorkerEffects* out) {
  if (!run_ || run_->failed()) return;
  out->push_back(SendEffect{Finished{run_id(), std::move(reports)}});
  run_->End();
  out->push_back(ForgetEffect{});
}

void WorkerCore::OnFailure(int64_t now, Failed failure, WorkerEffects* out) {
  const SendNote note(this, out);
  if (!run_) return;
  failure.run = run_id();
  run_->OnFailure(now, std::move(failure), out);
}

void WorkerCore::Forget(int64_t now, WorkerEffects* out) {
  if (run_) out->push_back(SendEffect{Forgotten{run_id()}});
  run_.reset();
  unsettled_.reset();
  if (!next_.has_value()) return;
  const Assign assign = *std::exchange(next_, std::nullopt);
  OnAssign(now, assign, out);
  for (const GroupId& id : std::exchange(next_ids_, {})) OnIdOfGroup(id, out);
}

}  // namespace weft
