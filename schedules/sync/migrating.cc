// The state of a stage, which is its live versions, the sum of gradients in progress and the optimizer's
// state, goes from job to job along its route (state_route.h). The rank of a job has it for the time of the
// job. It is updated where the step's last backward is; the rank of the run's first such backward counts as
// its holder.
#include <algorithm>
#include <utility>

#include "schedules/graph/graph.h"
#include "schedules/sync/catalogue.h"
#include "schedules/sync/held_versions.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

std::vector<Rank> FirstHolder(const Schedule& schedule, const StateRoute& route, int first_step, int stage) {
  return {schedule.compute(route.LastBackward(first_step, stage))};
}

class MigratingProtocol : public Protocol {
 public:
  MigratingProtocol(const Schedule& schedule, int stage, std::shared_ptr<const StateRoute> route,
                    int first_step)
      : Protocol(stage, FirstHolder(schedule, *route, first_step, stage)) {
    layout_ = Layout::kTravelling;
    holders_.front().saves = true;
    route_ = std::move(route);
  }

  // A micro-batch's backward comes after its forward anyway. If the state stays on its rank, the edge only
  // orders the two jobs.
  void AddPredecessors(const Graph& graph, const Job& job, Edges* edges) const override {
    const std::optional<Job> before = route_->Before(job);
    if (!before.has_value()) return;
    const bool stays = graph.RankOf(*before) == graph.RankOf(job);
    const bool backpropagation = before->kind == JobKind::kForward && job.kind == JobKind::kBackward &&
                                 before->step == job.step && before->microbatch == job.microbatch;
    if (stays && backpropagation) return;
    edges->push_back({*before, job, stays ? TensorKind::kOrder : TensorKind::kState, 0, 0});
  }

  void AddOperations(const Graph& graph, const Job& job, std::vector<Operation>* operations) const override {
    const Rank rank = graph.RankOf(job);
    const std::optional<Job> before = route_->Before(job), after = route_->After(job);
    if (!before.has_value()) operations->push_back(Operation::kBeginState);
    if (before.has_value() && graph.RankOf(*before) != rank) operations->push_back(Operation::kReceiveState);
    Protocol::AddOperations(graph, job, operations);
    const int version = graph.VersionOf(job);
    if (HasMicrobatch(job.kind) && version < route_->NewestAfter(job) && !route_->IsReadAfter(job, version))
      operations->push_back(Operation::kDropVersion);
    if (after.has_value() && graph.RankOf(*after) != rank) operations->push_back(Operation::kSendState);
  }
};

class MigratingSync : public Sync {
 public:
  explicit MigratingSync(Ticks tick) : tick_(std::move(tick)) {}
  std::string name() const override { return "migrating"; }
  const Ticks& tick() const { return tick_; }

  Protocols Make(const Schedule& schedule, Steps steps) const override {
    if (!tick_) return SlicedSums()->Make(schedule, steps);
    const auto route = std::make_shared<const StateRoute>(schedule, tick_, steps.end, steps.first);
    Protocols protocols;
    for (int stage = 0; stage < schedule.stages; ++stage)
      protocols.push_back(std::make_shared<MigratingProtocol>(schedule, stage, route, steps.first));
    return protocols;
  }
  absl::Status Check(const RunSchedule& schedule) const override { return CheckRoute(schedule, tick_); }
  std::optional<int> CountHolders(int) const override { return tick_ ? std::optional<int>(1) : std::nullopt; }
  std::string WhyNotJoint() const override {
    return "the state of a stage goes from rank to rank, and its sum of gradients with it";
  }

 private:
  Ticks tick_;
};

}  // namespace

std::shared_ptr<const Sync> Migrating(Ticks tick) { return std::make_shared<MigratingSync>(std::move(tick)); }

Ticks TicksOf(const Sync& sync) {
  const auto* const migrating = dynamic_cast<const MigratingSync*>(&sync);
  return migrating == nullptr ? nullptr : migrating->tick();
}

bool IsMigrating(const Sync& sync) { return dynamic_cast<const MigratingSync*>(&sync) != nullptr; }

}  // namespace weft
