#include "schedules/sync/protocol.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/held_versions.h"

namespace weft {

absl::string_view OperationName(Operation operation) {
  constexpr absl::string_view kNames[kOperations] = {
      "begin_state", "receive_state", "join_gather",     "gather_weights", "keep_weights",
      "forward",     "forward_only",  "remake_forward",  "backward",       "hand_out_gradient",
      "add_to_sum",  "accumulate",    "all_reduce",      "reduce_scatter", "sum_squares",
      "step",        "clipped_step",  "install_weights", "drop_version",   "send_state"};
  return kNames[static_cast<int>(operation)];
}

Protocol::Protocol(int stage, std::vector<Rank> ranks) : stage_(stage), ranks_(std::move(ranks)) {
  for (const Rank rank : ranks_) holders_.push_back({rank});
}

Protocol::Protocol(const Schedule& schedule, int stage) : stage_(stage) {
  std::set<Rank> ranks;
  bool remote = false;
  for (int step = 0; step < schedule.period; ++step) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, schedule.input_backward(), schedule.final_backward()}) {
        const Job job = Job::Compute(step, stage, b, kind);
        const Rank holder = schedule.weights(job);
        ranks.insert(holder);
        const bool elsewhere = holder != schedule.compute(job);
        remote |= kind != JobKind::kForward && elsewhere;
        weights_leave_ |= elsewhere;
      }
    }
  }
  ranks_.assign(ranks.begin(), ranks.end());
  for (const Rank rank : ranks_) holders_.push_back({rank});
  gradients_leave_ = remote || ranks_.size() > 1;
}

// A backward on the holder reads what its forward read: the forward's edge is enough, wherever that was. A
// job that would read a version before the first one waits for no update.
void Protocol::AddWeights(const Graph& graph, const Job& reader, Edges* edges) const {
  const bool fetch = graph.FetchesWeights(reader);
  if (!fetch && reader.kind != JobKind::kForward) return;
  const int version = graph.VersionOf(reader);
  if (const std::optional<Job> first = graph.FetchedBy(reader); first.has_value()) {
    edges->push_back({*first, reader, TensorKind::kWeights, 0, version});
    return;
  }
  const int wanted = reader.step - graph.schedule().StalenessOf(reader.stage, reader.microbatch);
  const Job update = UpdateTo(fetch ? version : wanted, graph.SourceOf(reader));
  if (!fetch && update.step < 0) return;
  edges->push_back({update, reader, fetch ? TensorKind::kWeights : TensorKind::kOrder, 0, version});
}

void Protocol::ReduceAll() {
  has_reduce_ = true;
  for (Holder& holder : holders_) holder.reduces = true;
}

void Protocol::AddUpdateBefore(const Job& update, Edges* edges) {
  if (update.step == 0) return;
  edges->push_back(
      {Job::Update(update.step - 1, update.stage, update.member), update, TensorKind::kOrder, 0, 0});
}

void Protocol::AddGradients(const Graph& graph, const Job& sum, Edges* edges) const {
  const TensorKind tensor = gradients_leave_ ? TensorKind::kGradient : TensorKind::kOrder;
  for (int b = 0; b < graph.schedule().microbatches; ++b) {
    edges->push_back(
        {Job::Compute(sum.step, sum.stage, b, graph.final_backward()), sum, tensor, sum.member, 0});
  }
}

Kept Protocol::KeptBy(const Graph& graph, int member) const {
  Kept kept;
  kept.versions = MaxVersions(graph, stage_, ranks_[member]);
  kept.leaving = weights_leave_ ? 1 : 0;
  kept.sums = 1 + graph.schedule().MaxStaleness(stage_);
  return kept;
}

void Protocol::AddOperations(const Graph& graph, const Job& job, std::vector<Operation>* operations) const {
  const bool away = HasMicrobatch(job.kind) && graph.HasRemoteBackward(job);
  switch (job.kind) {
    case JobKind::kForward:
      if (layout_ == Layout::kSliced && graph.FetchesWeights(job))
        operations->push_back(Operation::kGatherWeights);
      if (graph.KeepsFetched(job)) operations->push_back(Operation::kKeepWeights);
      operations->push_back(away ? Operation::kForwardOnly : Operation::kForward);
      return;
    case JobKind::kBackward:
    case JobKind::kBackwardInput:
    case JobKind::kBackwardWeight:
      if (layout_ == Layout::kSliced && graph.FetchesWeights(job))
        operations->push_back(Operation::kGatherWeights);
      if (graph.KeepsFetched(job)) operations->push_back(Operation::kKeepWeights);
      if (away && job.kind == graph.input_backward()) operations->push_back(Operation::kRemakeForward);
      operations->push_back(Operation::kBackward);
      if (job.kind != graph.final_backward()) return;
      if (passes_sums_) operations->push_back(Operation::kAddToSum);
      if (!passes_sums_ && gradients_leave_) operations->push_back(Operation::kHandOutGradient);
      return;
    case JobKind::kReduce:
      if (gradients_leave_) operations->push_back(Operation::kAccumulate);
      return;
    case JobKind::kUpdate:
      if (gradients_leave_ && !has_reduce_) operations->push_back(Operation::kAccumulate);
      if (holders_[job.member].steps) {
        operations->push_back(Operation::kStep);
      } else if (VersionBehind(job) > 0) {  // the run begins with version 0
        operations->push_back(Operation::kInstallWeights);
      }
      return;
  }
}

}  // namespace weft
