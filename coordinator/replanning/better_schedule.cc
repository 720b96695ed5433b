#include "coordinator/replanning/better_schedule.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/replanning/pipeline_order.h"
#include "planner/split_order_search.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/families/candidates.h"
#include "schedules/families/families.h"
#include "schedules/families/leading_stages.h"
#include "schedules/families/tie_rule.h"
#include "schedules/families/unequal_ranks.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

constexpr int kSteps = 4;                // simulated; the second half is the steady state
constexpr double kHardlyMore = 1.1;      // of bytes and activations, where links are not known
constexpr double kBetter = 1 - 1e-6;     // a step is shorter by more than rounding
constexpr int64_t kMaxJobs = 200'000;    // of a step, up to which all families are tried
constexpr int64_t kMaxOrdered = 10'000;  // forwards of a step whose order is searched: a run keeps the rows
constexpr int kMostMoves = 64;           // of stages, one after the other
constexpr double kSlow = 0.95;           // ranks below this part of the fastest are named

// A schedule with its prediction.
struct Judged {
  ScheduleSpec spec;
  double step = 0;
  double bytes_sent = 0;
  int live_activations = 0;
  std::vector<double> held_bytes, peak_bytes;  // by rank
};

class ScheduleSearch {
 public:
  ScheduleSearch(const ReplanQuestion& question, const std::function<bool()>& stop)
      : run_(question.run),
        measured_(question.measured),
        link_(question.link),
        slow_pairs_(question.slow_pairs),
        has_left_(question.has_left),
        stop_(stop) {}

  absl::StatusOr<BetterSchedule> Run() {
    auto present = ScheduleOf(run_);
    if (!present.ok()) return present.status();
    present_ = *std::move(present);
    has_pairs_ = Graph(present_).has_pairs();
    SetCosts();
    auto judged = Judge(run_.schedule);
    if (!judged.ok()) return judged.status();
    now_ = *std::move(judged);
    if (absl::Status weighed = WeighSlowLinks(); !weighed.ok()) return weighed;
    best_ = now_;
    // The schedules for unequal speeds come first: the families of a large run may take all the time that
    // there is.
    TryDeal();
    TryPlacements();
    TryOrder();
    if (int64_t{run_.placed_stages()} * run_.train.microbatches <= kMaxJobs) TryFamilies();
    BetterSchedule better;
    better.schedule = best_.spec;
    better.present = now_.step;
    better.step = best_.step;
    better.bound = WorkBound(measured_, run_.train.microbatches, present_.scheme.split_backward);
    better.held_bytes = best_.held_bytes;
    better.peak_bytes = best_.peak_bytes;
    better.tried = tried_;
    better.slow_links = !costs_.network.pairs.empty();
    return better;
  }

 private:
  int ranks() const { return present_.scheme.ranks; }
  bool Stopped() const { return stop_ && stop_(); }

  void SetCosts() {
    costs_.steps = kSteps;
    costs_.duration = measured_.duration;
    costs_.network.speeds = measured_.speeds;
    costs_.hidden = 0;
    if (link_.has_value()) {
      costs_.bandwidth = link_->bandwidth;
      costs_.latency = link_->latency;
    }
    const std::vector<LayerCount> layers = CountLayers(run_.model, run_.precision);
    const auto element = static_cast<double>(ComputeBytes(run_.precision));
    costs_.activation = CountRun(run_, present_).BytesOfForwards();
    costs_.weight.clear();
    const std::vector<StageMemory> counted = CountStages(run_);
    size_t end = 0;
    for (int s = 0; s < run_.stages(); ++s) {
      end += run_.layers_of_stage[s];
      costs_.output.push_back(
          element * static_cast<double>(layers[end - 1].output.elements(run_.microbatch_samples())));
      costs_.weight.push_back(static_cast<double>(counted[s].parameters));
    }
  }

  // Lets the slow links count where the present schedule shows them, or avoids one: then it is the one with
  // them that another has to beat. Else forgets about links.
  absl::Status WeighSlowLinks() {
    if (slow_pairs_.empty()) return absl::OkStatus();
    costs_.network.pairs = slow_pairs_;
    auto slowed = Judge(run_.schedule);
    if (!slowed.ok()) return slowed.status();
    if (has_left_ || 1 - now_.step / slowed->step > run_.replan.gain) {
      memory_ = MostOf(now_.peak_bytes);
      now_ = *std::move(slowed);
      return absl::OkStatus();
    }
    costs_.network.pairs.clear();
    costs_.bandwidth = costs_.latency = 0;
    link_.reset();
    auto without = Judge(run_.schedule);
    if (!without.ok()) return without.status();
    now_ = *std::move(without);
    return absl::OkStatus();
  }

  static double MostOf(const std::vector<double>& bytes) {
    return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  }

  // Returns true if a schedule needs too much memory for a run that moves by itself.
  bool NeedsMoreMemory(const Judged& judged) const {
    if (costs_.network.pairs.empty() || run_.memory > 0) return false;
    return MostOf(judged.peak_bytes) > memory_ * kHardlyMore;
  }

  // Returns true if both read the same weights and so end with the same bits.
  bool HasRuleOfPresent(const Schedule& scheme) const {
    for (int s = 0; s < scheme.stages; ++s) {
      for (int b = 0; b < scheme.microbatches; ++b) {
        if (scheme.StalenessOf(s, b) != present_.scheme.StalenessOf(s, b)) return false;
      }
    }
    return true;
  }

  bool HasHoldersOfPresent(const Graph& graph) const {
    const Graph present(present_);
    for (int s = 0; s < run_.stages(); ++s) {
      if (graph.members(s).size() != present.members(s).size()) return false;
    }
    return true;
  }

  absl::StatusOr<Judged> Judge(const ScheduleSpec& spec) {
    ++tried_;
    RunSpec under = run_;
    under.schedule = spec;
    const auto schedule = CheckedScheduleOf(under);
    if (!schedule.ok()) return schedule.status();
    const Graph graph(*schedule);
    if (schedule->scheme.ranks != ranks() || !HasRuleOfPresent(schedule->scheme))
      return absl::FailedPreconditionError("it trains otherwise");
    if (schedule->scheme.split_backward != present_.scheme.split_backward)
      return absl::FailedPreconditionError("its backwards were not measured");
    if (graph.has_pairs() && !has_pairs_) return absl::FailedPreconditionError("its pairs were not measured");
    if (!link_.has_value() && !HasHoldersOfPresent(graph))
      return absl::FailedPreconditionError("the links for its sums were not measured");
    const RunMemory counted = CountRun(under, *schedule);
    SimulationOptions costs = costs_;
    costs.activation = counted.BytesOfForwards();
    const auto result = Simulate(graph, costs);
    if (!result.ok()) return result.status();
    Judged judged;
    judged.spec = spec;
    judged.step = result->period;
    judged.live_activations = result->peak_live_activations;
    for (size_t r = 0; r < result->ranks.size(); ++r) {
      judged.bytes_sent += result->ranks[r].bytes_sent;
      const double activations = result->ranks[r].peak_activation_bytes;
      judged.held_bytes.push_back(counted.ranks[r].BesideActivations(run_.memory, activations));
      judged.peak_bytes.push_back(judged.held_bytes.back() + activations);
    }
    return judged;
  }

  // Returns the candidate with what of the present schedule is no placement.
  ScheduleSpec SpecOf(const Candidate& candidate) const {
    ScheduleSpec spec = run_.schedule;
    spec.name = candidate.name;
    spec.parameters = candidate.parameters;
    spec.rule = candidate.rule;
    return spec;
  }

  // Judges the candidate, unless it needs what is not known to be there.
  std::optional<Judged> JudgeCandidate(const Candidate& candidate) {
    if (Stopped()) return std::nullopt;
    auto judged = Judge(SpecOf(candidate));
    if (!judged.ok()) return std::nullopt;
    const bool hardly_more = judged->bytes_sent <= now_.bytes_sent * kHardlyMore &&
                             judged->live_activations <= now_.live_activations * kHardlyMore;
    if (!link_.has_value() && !hardly_more) return std::nullopt;
    if (NeedsMoreMemory(*judged)) return std::nullopt;
    return *std::move(judged);
  }

  void Try(const Candidate& candidate) {
    if (std::optional<Judged> judged = JudgeCandidate(candidate)) Offer(*std::move(judged));
  }

  void Offer(Judged judged) {
    if (judged.step < best_.step * kBetter) best_ = std::move(judged);
  }

  void TryFamilies() {
    const int stages = run_.placed_stages(), microbatches = run_.train.microbatches;
    const auto try_all = [&](const std::vector<Candidate>& candidates) {
      for (const Candidate& candidate : candidates) {
        const auto made = MakeSchedule(candidate.name, candidate.parameters, stages, microbatches);
        if (made.ok() && made->ranks == ranks()) Try(candidate);
      }
    };
    try_all(Candidates(stages, microbatches));
    if (present_.scheme.MaxStaleness() > 0) try_all(OldWeightCandidates(stages, microbatches));
  }

  void TryDeal() {
    if (run_.train.microbatches < ranks() || present_.scheme.MaxStaleness() > 0) return;
    Try(DealtCandidate(DealBySpeed(run_.train.microbatches, measured_.speeds), ranks()));
  }

  // Returns the costs of the stages that the schedule lays out.
  SimulationOptions PlacedCosts() const { return JoinLeadingStages(run_.tied_stages, run_.stages(), costs_); }

  std::vector<double> WorkOfStages() const {
    std::vector<double> work(run_.placed_stages());
    const SimulationOptions costs = PlacedCosts();
    for (int k = 0; HasMicrobatch(static_cast<JobKind>(k)); ++k) {
      for (int s = 0; s < run_.placed_stages(); ++s) work[s] += costs.duration[k][s];
    }
    return work;
  }

  void TryPlacements() {
    if (run_.placed_stages() < ranks() || present_.scheme.MaxStaleness() > 0) return;
    std::vector<Rank> placed = PlaceBySpeed(WorkOfStages(), measured_.speeds);
    std::optional<Judged> best;
    std::string order;
    for (const std::string& tried : OrdersFrom(kOneForwardOneBackward)) {
      std::optional<Judged> judged = JudgeCandidate(PlacedCandidate(placed, ranks(), tried));
      if (!judged.has_value() || (best.has_value() && judged->step >= best->step * kBetter)) continue;
      best = std::move(judged);
      order = tried;
    }
    if (!best.has_value()) return;
    for (int move = 0; move < kMostMoves; ++move) {
      if (!MoveStage(order, &placed, &*best) && !ExchangeRanks(order, &placed, &*best)) break;
    }
    Offer(*std::move(best));
  }

  // Orders the jobs of a pipeline for the speeds of its ranks.
  void TryOrder() {
    const int stages = run_.placed_stages();
    if (!present_.scheme.split_backward || stages != ranks() || stages < 2 || Stopped()) return;
    if (int64_t{stages} * run_.train.microbatches > kMaxOrdered) return;
    SplitSearchLimits limits;
    if (stop_) limits.stop = stop_;
    const SplitPipeline pipeline =
        SplitPipelineOf(PlacedCosts(), stages, run_.train.microbatches, RoomForActivations());
    if (const auto found = FindSplitOrder(pipeline, limits); found.has_value())
      Try(OrderedCandidate(found->order));
  }

  // Returns the bytes of each rank for activations: as many as now where links are not known.
  std::vector<double> RoomForActivations() const {
    std::vector<double> room;
    const bool limited = run_.memory > 0 || !link_.has_value();
    for (size_t r = 0; r < now_.held_bytes.size() && limited; ++r) {
      const double most = link_.has_value() ? static_cast<double>(run_.memory) : now_.peak_bytes[r];
      room.push_back(most - now_.held_bytes[r]);
    }
    return room;
  }

  // Moves one stage to another rank if that is better; a rank keeps at least one.
  bool MoveStage(const std::string& order, std::vector<Rank>* placed, Judged* best) {
    for (int s = 0; s < run_.placed_stages(); ++s) {
      const Rank from = (*placed)[s];
      if (std::count(placed->begin(), placed->end(), from) < 2) continue;
      for (Rank to = 0; to < ranks(); ++to) {
        if (to == from) continue;
        (*placed)[s] = to;
        std::optional<Judged> judged = JudgeCandidate(PlacedCandidate(*placed, ranks(), order));
        if (judged.has_value() && judged->step < best->step * kBetter) {
          *best = *std::move(judged);
          return true;
        }
        (*placed)[s] = from;
      }
    }
    return false;
  }

  // Exchanges all stages of two ranks if that is better. Ranks differ by their links only where one is slow.
  bool ExchangeRanks(const std::string& order, std::vector<Rank>* placed, Judged* best) {
    if (costs_.network.pairs.empty()) return false;
    for (Rank a = 0; a < ranks(); ++a) {
      for (Rank b = a + 1; b < ranks(); ++b) {
        std::vector<Rank> exchanged = *placed;
        for (Rank& rank : exchanged) rank = rank == a ? b : rank == b ? a : rank;
        std::optional<Judged> judged = JudgeCandidate(PlacedCandidate(exchanged, ranks(), order));
        if (!judged.has_value() || judged->step >= best->step * kBetter) continue;
        *best = *std::move(judged);
        *placed = std::move(exchanged);
        return true;
      }
    }
    return false;
  }

  const RunSpec& run_;
  const RankCosts& measured_;
  std::optional<MeasuredLink> link_;
  const std::vector<PairLink>& slow_pairs_;
  const bool has_left_;
  const std::function<bool()>& stop_;
  SimulationOptions costs_;
  RunSchedule present_;
  bool has_pairs_ = false;  // whether the present schedule has overlapped pairs
  Judged now_, best_;
  // Most bytes of a rank under the present schedule on usual links. On a slow one fewer activations are
  // alive.
  double memory_ = 0;
  int tried_ = 0;
};

}  // namespace

absl::StatusOr<BetterSchedule> FindBetterSchedule(const ReplanQuestion& question,
                                                  const std::function<bool()>& stop) {
  return ScheduleSearch(question, stop).Run();
}

double WorkBound(const RankCosts& measured, int microbatches, bool split_backward) {
  double work = 0;  // of a micro-batch
  for (int k = 0; HasMicrobatch(static_cast<JobKind>(k)); ++k) {
    const auto kind = static_cast<JobKind>(k);
    if (kind != JobKind::kForward && (kind != JobKind::kBackward) != split_backward) continue;
    work += std::accumulate(measured.duration[k].begin(), measured.duration[k].end(), 0.0);
  }
  return work * microbatches / std::accumulate(measured.speeds.begin(), measured.speeds.end(), 0.0);
}

namespace {

// Returns "; the link of ranks 0 and 1 takes 4.1 times as long as usual", or nothing.
std::string SlowLinksText(const std::vector<SlowLink>& slow) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < slow.size() && i < kNamed; ++i) {
    absl::StrAppendFormat(&text, "; the link of ranks %d and %d takes %.1f times as long as usual", slow[i].a,
                          slow[i].b, slow[i].times);
  }
  if (slow.size() > kNamed) absl::StrAppend(&text, "; so do ", slow.size() - kNamed, " others");
  return text;
}

}  // namespace

std::string Sentence(const BetterSchedule& better, const RankCosts& measured,
                     const std::vector<SlowLink>& slow) {
  constexpr int kNamed = 4;
  std::vector<std::string> slow_ranks;
  for (size_t r = 0; r < measured.speeds.size(); ++r) {
    if (measured.speeds[r] >= kSlow) continue;
    slow_ranks.push_back(
        slow_ranks.size() == kNamed ? ".." : absl::StrFormat("rank %d at %.2f", r, measured.speeds[r]));
    if (slow_ranks.size() > kNamed) break;
  }
  const std::string speeds = absl::StrCat(
      slow_ranks.empty() ? "all ranks are about equally fast"
                         : absl::StrCat("of the fastest rank's speed, ", absl::StrJoin(slow_ranks, ", ")),
      better.slow_links ? SlowLinksText(slow) : "");
  if (better.gain() <= 0) {
    return absl::StrFormat("%s; nothing better than the present schedule was found (%.4g s a step)", speeds,
                           better.present);
  }
  return absl::StrFormat("%s; a step takes %.1f %% less under %s (%.4g s, now %.4g s)", speeds,
                         100 * better.gain(), ToText(better.schedule), better.step, better.present);
}

}  // namespace weft
