// Schedules whose holders reduce by collectives (schedules/sync/joint_order.h), against a model of devices: a
// collective ends when all its members have started it and all that was started before on their devices has
// ended. Over all families and random sizes, in random order of whatever can go on, nothing waits for ever,
// and the graph's edges say neither more nor less than the model does. The seed of a failing case is printed;
// run it alone with WEFT_SEED.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/dispatch/memory.h"
#include "schedules/families/families.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/catalogue.h"
#include "tests/property/random_inputs.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_collective_test {
namespace {

RunSchedule Draw(uint64_t seed, std::string* text) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  int stages = pick(1, 8), microbatches = pick(1, 8);
  std::map<std::string, std::string> parameters;
  const std::vector<std::string> names = {"ddp", "lpp", "dualpipe", "custom", "cdp_mp", "fsdp"};
  const std::string name = names[pick(0, static_cast<int>(names.size()) - 1)];
  std::string rule = "sync";
  if (name == "lpp") {
    parameters = {{"groups", absl::StrCat(pick(1, microbatches))}, {"ranks", absl::StrCat(pick(1, stages))}};
  } else if (name == "dualpipe") {
    stages += stages % 2;
    microbatches = 2 * stages + 2 * pick(0, 3);
  } else if (name == "fsdp") {
    parameters = {{"shard", "width"}};
  } else if (name == "cdp_mp") {
    stages = microbatches = pick(1, 5);
  } else if (name == "custom") {
    parameters = {{"workers", absl::StrCat(pick(1, 5))},
                  {"compute", absl::StrCat("(", pick(0, 3), "*s + ", pick(0, 3), "*b) % W")}};
    if (pick(0, 1) == 0) parameters["split_backward"] = "true";
  }
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  RunTerms terms;
  terms.takes_norm = seed % 3 == 0;
  terms.reduction = ReductionMode::kFast;
  // Stale weights let steps overlap.
  const int staleness = name == "dualpipe" ? 0 : pick(0, 2);
  const bool varies = staleness > 0 && seed % 5 == 0;
  if (staleness > 0)
    schedule->staleness = [staleness, varies](int, int b) {
      return varies ? (staleness + b) % 3 : staleness;
    };
  const bool chain = seed % 4 != 0;
  if (!chain) terms.inputs = RandomInputs(seed, stages);
  *text =
      absl::StrCat("seed ", seed, ": ", name, " S=", stages, " B=", microbatches, " staleness=", staleness,
                   chain ? "" : ", no chain", terms.takes_norm ? ", clips" : "");
  return {*std::move(schedule), std::move(terms)};
}

// Ranks and their devices, in steps of chance. A rank computes a job in one step, in the fixed order where it
// has one; a collective that it started is on its device's line, and it goes on.
class Model {
 public:
  Model(const Graph& graph, int steps, uint64_t seed) : graph_(graph), rng_(seed) {
    lines_.resize(graph.schedule().ranks);
    place_.assign(graph.schedule().ranks, 0);
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < graph.jobs_per_step(); ++i) waiting_.push_back(graph.JobAt(step, i));
    }
  }

  // Returns false when nothing can go on though not all is done.
  bool Run() {
    while (true) {
      std::shuffle(waiting_.begin(), waiting_.end(), rng_);
      const auto can =
          std::find_if(waiting_.begin(), waiting_.end(), [this](const Job& j) { return CanStart(j); });
      const auto gather =
          std::find_if(waiting_.begin(), waiting_.end(), [this](const Job& j) { return CanGather(j); });
      if (gather != waiting_.end() && (can == waiting_.end() || rng_() % 2 == 0)) {
        begun_.insert(*gather);
        lines_[graph_.RankOf(*gather)].push_back(*gather);
      } else if (can != waiting_.end()) {
        const Job job = *can;
        waiting_.erase(can);
        Start(job);
      } else if (!EndACollective()) {
        return waiting_.empty() && started_.empty();
      }
      while (rng_() % 2 == 0 && EndACollective()) {
      }
    }
  }

 private:
  bool IsCollective(const Job& job) const {
    return job.kind == JobKind::kReduce && graph_.protocol(job.stage).reduces_jointly();
  }
  // The rank may give its part to the collective of the job.
  bool CanBegin(const Job& job) const {
    std::vector<Edge> edges;
    graph_.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (graph_.BeginsJointly(e) && !HasEnded(e.from)) return false;
    }
    const std::optional<Job> before = graph_.joint_order().Before(job);
    return !before.has_value() || begun_.count(*before) != 0;
  }
  bool HasEnded(const Job& job) const { return job.step < 0 || ended_.count(job) != 0; }

  bool CanStart(const Job& job) const {
    const Rank rank = graph_.RankOf(job);
    if (HasMicrobatch(job.kind) && graph_.replays()) {
      const std::vector<Job>& order = graph_.schedule().order[rank];
      Job next = order[place_[rank] % order.size()];
      next.step = static_cast<int32_t>(place_[rank] / order.size());
      if (next != job) return false;
    }
    std::vector<Edge> edges;
    graph_.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (e.joined || (IsCollective(job) && e.tensor == TensorKind::kNorm)) continue;
      if (!HasEnded(e.from)) return false;
    }
    if (graph_.GathersWeights(job)) return gathered_.count(job) != 0;
    return !IsCollective(job) || CanBegin(job);
  }
  bool CanGather(const Job& job) const {
    return graph_.GathersWeights(job) && begun_.count(job) == 0 && CanBegin(job);
  }

  void Start(const Job& job) {
    const Rank rank = graph_.RankOf(job);
    if (IsCollective(job)) {
      lines_[rank].push_back(job);
      started_.insert(job);
      begun_.insert(job);
      return;
    }
    if (HasMicrobatch(job.kind)) ++place_[rank];
    End(job);
  }

  void End(const Job& job) {
    std::vector<Edge> edges;
    graph_.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      // The total of a norm is made behind the sum, and nothing on the devices waits for that.
      if (e.joined && graph_.TotalsNorm(e.from)) continue;
      if (IsCollective(job) && e.tensor == TensorKind::kNorm) continue;
      EXPECT_TRUE(HasEnded(e.from)) << Describe(job) << " ends before " << Describe(e.from);
    }
    ended_.insert(job);
  }

  // One that is first on the lines of all its members.
  bool EndACollective() {
    std::vector<Job> can;
    for (const auto& line : lines_) {
      if (line.empty()) continue;
      const Job& job = line.front();
      if (graph_.RankOf(job) != graph_.members(job.stage).front()) continue;
      bool all = true;
      for (const Rank rank : graph_.members(job.stage)) {
        all = all && !lines_[rank].empty() && lines_[rank].front().step == job.step &&
              lines_[rank].front().stage == job.stage && lines_[rank].front().kind == job.kind;
      }
      if (all) can.push_back(job);
    }
    // The total of a norm ends when the other norms are there; what stands behind it on the devices goes on.
    if (can.empty()) return EndTotals();
    const Job job = can[rng_() % can.size()];
    for (const Rank rank : graph_.members(job.stage)) {
      const Job member = lines_[rank].front();
      lines_[rank].pop_front();
      started_.erase(member);
      if (HasMicrobatch(member.kind)) {
        ExpectMade(member);
        gathered_.insert(member);
      } else if (graph_.TotalsNorm(member)) {
        totals_.push_back(member);
        started_.insert(member);
      } else {
        End(member);
      }
    }
    return true;
  }
  // All slices of the weights.
  void ExpectMade(const Job& gathered) {
    std::vector<Edge> edges;
    graph_.Predecessors(gathered, &edges);
    for (const Edge& e : edges) {
      if (!e.joined || graph_.TotalsNorm(e.from)) continue;
      EXPECT_TRUE(HasEnded(e.from)) << "the gather for " << Describe(gathered) << " ends before "
                                    << Describe(e.from);
    }
  }
  bool EndTotals() {
    for (auto total = totals_.begin(); total != totals_.end(); ++total) {
      std::vector<Edge> edges;
      graph_.Predecessors(*total, &edges);
      const bool all =
          std::all_of(edges.begin(), edges.end(), [this](const Edge& e) { return HasEnded(e.from); });
      if (!all) continue;
      started_.erase(*total);
      ended_.insert(*total);
      totals_.erase(total);
      return true;
    }
    return false;
  }

  const Graph& graph_;
  std::mt19937_64 rng_;
  std::vector<Job> waiting_;
  std::vector<std::deque<Job>> lines_;  // by rank
  std::vector<int64_t> place_;          // by rank, in its fixed order
  std::set<Job> started_, ended_;
  std::set<Job> begun_,
      gathered_;  // jobs whose collectives have been started on their ranks; weights are here
  std::vector<Job> totals_;
};

class ScheduleCollective : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ScheduleCollective, OnDevicesInAnyOrder_EndsAndObeysTheGraph) {
  std::string text;
  const RunSchedule schedule = Draw(GetParam(), &text);
  SCOPED_TRACE(text);
  const absl::Status sound = CheckSchedule(schedule);
  ASSERT_TRUE(sound.ok()) << sound;
  const Graph graph(schedule, 3);
  for (uint64_t order = 0; order < 4; ++order) EXPECT_TRUE(Model(graph, 3, GetParam() * 97 + order).Run());
}

TEST_P(ScheduleCollective, StepEdges_AreTheInversionOfPredecessors) {
  std::string text;
  const Graph graph(Draw(GetParam(), &text));
  SCOPED_TRACE(text);
  using Key = std::tuple<Job, Job, TensorKind, int, bool>;
  std::multiset<Key> forth, back;
  const StepEdges successors(graph);
  std::vector<Edge> edges;
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      edges.clear();
      successors.AppendSuccessors(graph, graph.JobAt(step, i), &edges);
      for (const Edge& e : edges) {
        if (e.to.step < 5) forth.insert({e.from, e.to, e.tensor, e.part, e.joined});
      }
      edges.clear();
      graph.Predecessors(graph.JobAt(step, i), &edges);
      for (const Edge& e : edges) {
        if (e.from.step >= 0) back.insert({e.from, e.to, e.tensor, e.part, e.joined});
        EXPECT_TRUE(!graph.BeginsJointly(e) || graph.RankOf(e.from) == graph.RankOf(e.to))
            << Describe(e.to) << " needs a message to begin";
      }
    }
  }
  EXPECT_EQ(forth, back);
}

TEST_P(ScheduleCollective, Simulated_MembersStartTogetherAndSendARing) {
  std::string text;
  const Graph graph(Draw(GetParam(), &text));
  SCOPED_TRACE(text);
  SimulationOptions options;
  options.steps = 3;
  options.record_jobs = true;
  options.weight = {60};
  options.bandwidth = GetParam() % 2 == 0 ? 10 : 0;
  options.latency = static_cast<double>(GetParam() % 3);
  options.duration[static_cast<int>(JobKind::kReduce)] = {static_cast<double>(GetParam() % 5)};
  const auto run = Simulate(graph, options);
  ASSERT_TRUE(run.ok()) << run.status();
  std::map<std::pair<int, int>, std::set<std::pair<double, double>>> times;
  std::map<std::pair<int, int>, std::pair<size_t, size_t>> places;
  for (size_t i = 0; i < run->jobs.size(); ++i) {
    const SimulatedJob& j = run->jobs[i];
    if (j.job.kind != JobKind::kReduce || !graph.protocol(j.job.stage).reduces_jointly()) continue;
    times[{j.job.step, j.job.stage}].insert({j.start, j.end});
  }
  for (const auto& [which, of_members] : times) EXPECT_EQ(of_members.size(), 1u) << "stage " << which.second;
  for (Rank rank = 0; rank < graph.schedule().ranks; ++rank) {
    double expected = 0;
    for (int stage = 0; stage < graph.schedule().stages; ++stage) {
      const std::vector<Rank>& members = graph.members(stage);
      const double n = static_cast<double>(members.size());
      if (graph.protocol(stage).reduces_jointly() && std::count(members.begin(), members.end(), rank) > 0)
        expected += 3 * 60 * (graph.protocol(stage).scatters_sum() ? 1 : 2) * (n - 1) / n;
    }
    if (!graph.schedule().sync->WhyNotJoint().empty()) break;  // they pass sums on as messages
    EXPECT_NEAR(run->ranks[rank].sent_by_kind[static_cast<int>(TensorKind::kGradientSum)], expected, 1e-9);
    EXPECT_EQ(run->ranks[rank].sent_by_kind[static_cast<int>(TensorKind::kGradient)], 0);
  }
}

TEST_P(ScheduleCollective, ClaimOrder_HasThePredecessorsOfAllMembersFirst) {
  std::string text;
  const Graph graph(Draw(GetParam(), &text));
  SCOPED_TRACE(text);
  SimulationOptions options;
  options.steps = 2;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  options.record_jobs = true;
  const auto run = Simulate(graph, options);
  ASSERT_TRUE(run.ok()) << run.status();
  std::map<Job, size_t> place;
  for (size_t i = 0; i < run->jobs.size(); ++i) place[run->jobs[i].job] = i;
  ASSERT_EQ(place.size(), 2u * graph.jobs_per_step());
  std::vector<Edge> edges;
  for (const auto& [job, at] : place) {
    edges.clear();
    graph.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (e.from.step < 0) continue;
      EXPECT_LT(place[e.from], at) << Describe(job) << " before " << Describe(e.from);
    }
  }
}

std::vector<uint64_t> Seeds() {
  if (const char* one = std::getenv("WEFT_SEED")) return {std::strtoull(one, nullptr, 10)};
  std::vector<uint64_t> seeds(150);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = i + 1;
  return seeds;
}
INSTANTIATE_TEST_SUITE_P(Seeds, ScheduleCollective, ::testing::ValuesIn(Seeds()));

RunSchedule Fast(Schedule scheme) {
  RunTerms terms;
  terms.reduction = ReductionMode::kFast;
  return {std::move(scheme), terms};
}

TEST(ScheduleCollectiveFamilies, Ddp_ReducesWithoutMessages) {
  const Graph graph(Fast(*MakeSchedule("ddp", {}, 3, 4)));
  EXPECT_EQ(graph.joint_order().groups(), (std::vector<std::vector<Rank>>{{0, 1, 2, 3}}));
  std::vector<Edge> edges;
  const StepEdges successors(graph);
  for (int i = 0; i < graph.jobs_per_step(); ++i) {
    edges.clear();
    successors.AppendSuccessors(graph, graph.JobAt(1, i), &edges);
    for (const Edge& e : edges)
      EXPECT_TRUE(e.joined || graph.RankOf(e.from) == graph.RankOf(e.to))
          << Describe(e.from) << Describe(e.to);
  }
}

TEST(ScheduleCollectiveFamilies, FsdpByWidth_SendsNormsAlone) {
  RunSchedule schedule = Fast(*MakeSchedule("fsdp", {{"shard", "width"}}, 3, 4));
  for (const bool clips : {false, true}) {
    schedule.terms.takes_norm = clips;
    const Graph graph(schedule);
    EXPECT_EQ(graph.joint_order().groups(), (std::vector<std::vector<Rank>>{{0, 1, 2, 3}}));
    std::vector<Edge> edges;
    int gathered = 0, norms = 0;
    const StepEdges successors(graph);
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      edges.clear();
      successors.AppendSuccessors(graph, graph.JobAt(1, i), &edges);
      for (const Edge& e : edges) {
        gathered += e.joined && e.tensor == TensorKind::kWeights;
        if (e.joined || graph.RankOf(e.from) == graph.RankOf(e.to)) continue;
        EXPECT_EQ(e.tensor, TensorKind::kNorm) << Describe(e.from) << Describe(e.to);
        norms += e.tensor == TensorKind::kNorm && e.to.kind == JobKind::kReduce;
      }
    }
    EXPECT_EQ(gathered, 3 * 4 * 2 * 3) << "stages, micro-batches, forward and backward, other holders";
    // Each member's slice has squares of its own; those of the other ranks come to the total.
    EXPECT_EQ(norms, clips ? 3 * 3 : 0);
  }
}

TEST(ScheduleCollectiveFamilies, FsdpByWidth_HoldsAWholeSumUntilItIsScattered) {
  const std::vector<double> none = {0}, weight = {64};
  const Schedule schedule = *MakeSchedule("fsdp", {{"shard", "width"}}, 3, 4);
  const std::vector<double> ordered = HeldBytes(Graph(WithoutTerms(schedule)), {none, weight, none});
  const std::vector<double> fast = HeldBytes(Graph(Fast(schedule)), {none, weight, none});
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(fast[rank], ordered[rank] + 3 * (64 - 16));
}

TEST(ScheduleCollectiveFamilies, HoldersOfOneStageAlone_HaveNone) {
  for (const std::string name : {"1f1b", "gpipe", "fsdp"}) {
    EXPECT_FALSE(Graph(Fast(*MakeSchedule(name, {}, 4, 4))).joint_order().any()) << name;
  }
}

TEST(ScheduleCollectiveFamilies, WeightsOfAnotherRank_StayOrdered) {
  // Two holders, but micro-batches compute with the weights of the other one.
  auto schedule =
      MakeSchedule("custom", {{"workers", "2"}, {"compute", "b % W"}, {"weights", "(b+1) % W"}}, 2, 4);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const Graph graph(Fast(*schedule));
  EXPECT_EQ(graph.members(0).size(), 2u);
  EXPECT_FALSE(graph.joint_order().any());
  EXPECT_TRUE(graph.protocol(0).gradients_leave());
}

}  // namespace
}  // namespace weft::schedule_collective_test
