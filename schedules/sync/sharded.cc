// Each holder has a slice of the weights and the optimizer's state of that slice, and sums that slice of all
// gradients. A compute job gathers the slices of all holders, and its gradient is scattered to them.
#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"

namespace weft {
namespace {

using HoldersOfStage = std::function<std::vector<Rank>(int stage)>;

bool ComputesElsewhere(const Schedule& schedule, int stage, Rank holder,
                       std::initializer_list<JobKind> kinds) {
  for (int step = 0; step < schedule.period; ++step) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const JobKind kind : kinds) {
        if (schedule.compute(Job::Compute(step, stage, b, kind)) != holder) return true;
      }
    }
  }
  return false;
}

class ShardedProtocol : public Protocol {
 public:
  ShardedProtocol(const Schedule& schedule, int stage, std::vector<Rank> ranks)
      : Protocol(stage, std::move(ranks)) {
    layout_ = Layout::kSliced;
    for (Holder& holder : holders_) holder.saves = true;
    gradients_leave_ =
        size() > 1 || ComputesElsewhere(schedule, stage, ranks_.front(),
                                        {schedule.input_backward(), schedule.final_backward()});
    weights_leave_ =
        gradients_leave_ || ComputesElsewhere(schedule, stage, ranks_.front(), {JobKind::kForward});
  }

  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    if (HasMicrobatch(job.kind)) return AddSlices(graph, job, edges);
    AddGradients(graph, job, edges);
    AddUpdateBefore(job, edges);
  }

  Kept KeptBy(const Graph& graph, int member) const override {
    Kept kept = Protocol::KeptBy(graph, member);
    kept.parts = size();
    return kept;
  }

 private:
  // The slices of all holders; the own one is there already.
  void AddSlices(const Graph& graph, const Job& job, Edges* edges) const {
    const int version = graph.VersionOf(job);
    const Rank rank = graph.RankOf(job);
    for (int m = 0; m < size(); ++m) {
      const bool own = ranks_[m] == rank;
      if (own && (version == 0 || job.kind != JobKind::kForward)) continue;
      edges->push_back({Job::Update(version - 1, job.stage, m), job,
                        own ? TensorKind::kOrder : TensorKind::kWeights, m, version});
    }
  }
};

class ShardedSync : public Sync {
 public:
  explicit ShardedSync(HoldersOfStage holders) : holders_(std::move(holders)) {}
  std::string name() const override { return "width"; }

  Protocols Make(const Schedule& schedule, Steps) const override {
    Protocols protocols;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const std::vector<Rank> named = holders_(stage);
      const std::set<Rank> ranks(named.begin(), named.end());
      protocols.push_back(
          std::make_shared<ShardedProtocol>(schedule, stage, std::vector<Rank>(ranks.begin(), ranks.end())));
    }
    return protocols;
  }

  absl::Status Check(const RunSchedule& run) const override {
    const Schedule& schedule = run.scheme;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const std::vector<Rank> shards = holders_(stage);
      if (shards.empty()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("nobody holds the weights of stage %d: it has no shards", stage));
      }
      for (const Rank rank : shards) {
        if (rank >= 0 && rank < schedule.ranks) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "shards of stage %d names rank %d; ranks are 0 to %d", stage, rank, schedule.ranks - 1));
      }
    }
    return absl::OkStatus();
  }

  std::optional<int> CountHolders(int stage) const override {
    return static_cast<int>(holders_(stage).size());
  }

 private:
  HoldersOfStage holders_;
};

}  // namespace

std::shared_ptr<const Sync> ShardedByWidth(HoldersOfStage holders) {
  return std::make_shared<ShardedSync>(std::move(holders));
}

}  // namespace weft
