// Implements WorkerCore's tensors, versions and states that come to jobs and go on from them.
#include <algorithm>
#include <optional>
#include <utility>

#include "worker/core/worker_run.h"

namespace weft {
namespace {

// The number of jobs of a rank whose fetched weights, or arriving states, may be there at once, where they
// are sharded or migrate: the running one, and the next one.
constexpr int kFetchesAtOnce = 2;

}  // namespace

TensorKey WorkerCore::KeyOf(const Edge& e) const {
  TensorKey key;
  key.run = run_->assignment.run;
  key.epoch = run_->assignment.epoch;
  key.step = e.from.step;
  key.stage = e.from.stage;
  key.microbatch = e.from.microbatch;
  key.version = e.version;
  key.part = e.part;
  key.producer = run_->graph.RankOf(e.from);
  key.consumer = run_->graph.RankOf(e.to);
  key.kind = e.tensor;
  key.use = static_cast<uint8_t>(e.to.kind);
  if (e.tensor == TensorKind::kWeights) {
    // Each reader fetches its own copy, and early steps may read the same version.
    key.step = e.to.step;
    key.microbatch = e.to.microbatch;
  } else if (e.tensor == TensorKind::kState) {
    key.part = static_cast<int32_t>(e.from.kind);
  } else if (e.tensor == TensorKind::kOrder) {
    key.version = static_cast<int32_t>(e.from.kind);
    key.part = e.to.stage * run_->graph.schedule().microbatches + e.to.microbatch;
  }
  return key;
}

// Wants weights in turn: claim order agrees with the graph, so the first job in it that has not ended, over
// all ranks, is always among those that may fetch.
void WorkerCore::WantWeights(RankState& rank, WorkerEffects* out) {
  for (; !rank.fetches.empty() && rank.fetching < kFetchesAtOnce; ++rank.fetching) {
    WantInputs(run_->JobOf(rank.fetches.front()), Inputs::kWeights, out);
    rank.fetches.pop_front();
  }
}

void WorkerCore::WantInputs(const Job& job, Inputs which, WorkerEffects* out) {
  std::vector<Edge> edges;
  run_->graph.Predecessors(job, &edges);
  for (const Edge& e : edges) {
    const bool weights = e.tensor == TensorKind::kWeights || e.tensor == TensorKind::kState;
    const Inputs kind = weights ? Inputs::kWeights : Inputs::kAllButWeights;
    if (which != Inputs::kAll && which != kind) continue;
    if (e.joined || (run_->IsBeforeRun(e) && !run_->IsInitialWeights(e))) continue;
    const int32_t process = run_->assignment.process_of_rank[run_->graph.RankOf(e.from)];
    if (run_->IsLocal(run_->graph.RankOf(e.from))) continue;
    const TensorKey key = KeyOf(e);
    run_->wanted[key] = {run_->IdOf(job), e.from.microbatch, run_->now};
    out->push_back(WantEffect{process, key});
  }
}

void WorkerCore::OnTensor(int64_t now, const TensorKey& key, int64_t made, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  const auto it = run_->wanted.find(key);
  if (it == run_->wanted.end()) return;
  const Run::Wanted wanted = it->second;
  run_->wanted.erase(it);
  RankState& rank = run_->StateOf(key.consumer);
  if (key.kind != TensorKind::kOrder) {
    rank.transfers.push_back({key.producer, key.kind, run_->JobOf(wanted.job), wanted.since, made, now});
    if (rank.transfers.size() > rank.spans_most) rank.transfers.pop_front();
  }
  InputArrived(wanted.job, wanted.microbatch, out);
  const bool awaited = (run_->FlagsOf(wanted.job) & kQueued) != 0;
  if (rank.idle() && awaited && made > 0) rank.clock.Arrived(now, made);
  StartJobs(now, out);
}

void WorkerCore::InputArrived(int64_t id, int microbatch, WorkerEffects* out) {
  Run& run = *run_;
  const Job job = run.JobOf(id);
  if (microbatch >= 0 && !HasMicrobatch(job.kind) && !run.graph.sync(job.stage).passes_sums() &&
      run.graph.route() == nullptr) {
    // The micro-batch's last backward on the stage has ended.
    run.versions->ReadElsewhere(job.step, job.stage, microbatch, job.member, &run.dropped);
    Drop(out);
  }
  if (microbatch >= 0 && run.ConsumesGradients(job)) run.IntakeOf(id).arrived[microbatch] = true;
  --run.MissingOf(id);
  run.Touch(run.StateOf(run.RankAt(id)));
  if (run.FlagsOf(id) & kClaimed) Consider(id);
}

// After its outputs, new weights among them, have been published.
void WorkerCore::CountVersions(RankState& rank, const Job& job, WorkerEffects* out) {
  Run& run = *run_;
  if (run.graph.route() != nullptr) {
    const StateRoute& route = *run.graph.route();
    rank.peak_weight_versions = std::max(rank.peak_weight_versions, route.VersionsDuring(job));
    const std::optional<Job> after = route.After(job);
    const bool leaves = after.has_value() && run.graph.RankOf(*after) != rank.rank;
    rank.visiting_versions[job.stage] = leaves ? 0 : route.VersionsAfter(job);
  } else if (HasMicrobatch(job.kind)) {
    run.versions->Read(job, &run.dropped);
  } else if (job.kind == JobKind::kUpdate) {
    rank.peak_weight_versions = std::max(rank.peak_weight_versions, run.versions->Publish(job, &run.dropped));
    if (run.TakesSnapshot(job)) run.versions->TakeSnapshot(job, &run.dropped);
  }
  if (run.TakesSnapshot(job) && --run.snapshots[job.step + 1] == 0) run.snapshots.erase(job.step + 1);
  Drop(out);
}

void WorkerCore::Drop(WorkerEffects* out) {
  for (const HeldVersions::Version& v : run_->dropped) {
    out->push_back(DropEffect{run_->graph.members(v.stage)[v.member], v.stage, v.version});
  }
  run_->dropped.clear();
}

// Publishes the outputs. An order edge to another rank brings no tensor whose bytes could be waited for: it
// is handed on when the job is done.
void WorkerCore::PublishOutputs(const Job& job, Outputs outputs, WorkerEffects* out, int64_t made) {
  std::vector<Edge> edges;
  run_->progress.edges().AppendSuccessors(run_->graph, job, &edges);
  for (const Edge& e : edges) {
    if (e.to.step >= run_->steps) continue;
    const bool when_done =
        e.tensor == TensorKind::kOrder && run_->graph.RankOf(e.to) != run_->graph.RankOf(job);
    if (outputs == Outputs::kWhenDone && !when_done) NoteMade(e.to, made);
    if (outputs == Outputs::kAll || when_done == (outputs == Outputs::kWhenDone)) PublishEdge(e, out);
  }
}

void WorkerCore::PublishEdge(const Edge& e, WorkerEffects* out) {
  if (e.joined) return;  // the collective waits for it
  const Rank consumer = run_->graph.RankOf(e.to);
  const int parts = e.tensor == TensorKind::kGradient || e.tensor == TensorKind::kGradientSum
                        ? static_cast<int>(run_->graph.members(e.from.stage).size())
                        : 1;
  if (!run_->IsLocal(consumer)) {
    out->push_back(PublishEffect{run_->assignment.process_of_rank[consumer], KeyOf(e), parts});
    return;
  }
  if (e.tensor != TensorKind::kOrder) out->push_back(PublishEffect{-1, KeyOf(e), parts});
  if (run_->graph.BeginsJointly(e)) --run_->JoiningOf(run_->IdOf(e.to)).left;
  InputArrived(run_->IdOf(e.to), e.from.microbatch, out);
}

}  // namespace weft
