// The proof that limits cannot deadlock, against the truth: every order in which the jobs of small random
// schedules can start is walked through.
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/check/deadlock.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

enum class Truth { kFree, kDeadlocks, kTooLarge };

// Runs from state to state, a state being the jobs that have run. It is enough to let jobs run one at a time:
// of jobs that overlap, start order gives the same admissions or earlier ones.
class Walk {
 public:
  // `claims`: forwards of a stage are admitted in claim order.
  Walk(const Graph& graph, int steps, bool claims = false)
      : graph_(graph), n_(graph.jobs_per_step()), jobs_(n_ * steps) {
    if (jobs_ > 64) return;  // Run says so
    before_.assign(jobs_, 0);
    if (claims) OrderByClaims(steps);
    for (int j = 0; j < jobs_; ++j) {
      std::vector<Edge> edges;
      graph.Predecessors(JobOf(j), &edges);
      for (const Edge& e : edges) {
        if (e.from.step >= 0) before_[j] |= uint64_t{1} << Number(e.from);
      }
    }
  }

  Truth Run() {
    if (jobs_ > 64) return Truth::kTooLarge;
    const uint64_t all = jobs_ == 64 ? ~uint64_t{0} : (uint64_t{1} << jobs_) - 1;
    absl::flat_hash_set<uint64_t> seen = {0};
    std::vector<uint64_t> remaining = {0};
    while (!remaining.empty()) {
      const uint64_t done = remaining.back();
      remaining.pop_back();
      bool moved = done == all;
      for (int j = 0; j < jobs_; ++j) {
        if ((done >> j & 1) || (before_[j] & ~done) != 0 || !Admitted(j, done)) continue;
        moved = true;
        if (seen.insert(done | uint64_t{1} << j).second) remaining.push_back(done | uint64_t{1} << j);
      }
      if (!moved) return Truth::kDeadlocks;
      if (seen.size() > 150'000) return Truth::kTooLarge;
    }
    return Truth::kFree;
  }

 private:
  void OrderByClaims(int steps) {
    const auto order = *ClaimOrder(graph_);
    for (const std::vector<Job>& of_rank : order[0]) {
      std::vector<uint64_t> earlier(graph_.schedule().stages, 0);
      for (int step = 0; step < steps; ++step) {
        for (Job job : of_rank) {
          if (job.kind != JobKind::kForward) continue;
          job.step = step;
          before_[Number(job)] |= earlier[job.stage];
          earlier[job.stage] |= uint64_t{1} << Number(job);
        }
      }
    }
  }
  Job JobOf(int number) const { return graph_.JobAt(number / n_, number % n_); }
  int Number(const Job& job) const { return job.step * n_ + graph_.IndexOf(job); }
  bool Admitted(int j, uint64_t done) const {
    const Job job = JobOf(j);
    if (job.kind != JobKind::kForward) return true;
    const auto limit = graph_.schedule().limit(graph_.RankOf(job), job.stage);
    if (!limit.has_value()) return true;
    int alive = 0;
    for (int other = 0; other < jobs_; ++other) {
      Job forward = JobOf(other);
      if (forward.kind != JobKind::kForward || forward.stage != job.stage ||
          graph_.RankOf(forward) != graph_.RankOf(job) || !(done >> other & 1)) {
        continue;
      }
      forward.kind = graph_.final_backward();
      alive += !(done >> Number(forward) & 1);
    }
    return alive < *limit;
  }

  const Graph& graph_;
  const int n_, jobs_;
  std::vector<uint64_t> before_;
};

// Limits with random staleness or order edges on a pipeline, or on stages that share ranks.
RunSchedule Draw(uint64_t seed, std::string* text) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  const int stages = pick(1, 3), microbatches = pick(1, 3), ranks = pick(1, stages);
  Schedule s = *MakeSchedule("gpipe", {}, stages, microbatches);
  s.ranks = ranks;
  s.compute = s.weights = [ranks](const Job& j) { return j.stage % ranks; };
  std::vector<int> limits, stale;
  for (int i = 0; i < stages; ++i) limits.push_back(pick(1, microbatches));
  for (int i = 0; i < stages * microbatches; ++i) stale.push_back(pick(0, 2) == 0 ? pick(1, 2) : 0);
  s.limit = [limits](Rank, int stage) -> std::optional<int> { return limits[stage]; };
  if (pick(0, 2) > 0) {
    s.staleness = [stale, microbatches](int stage, int b) { return stale[stage * microbatches + b]; };
  }
  if (pick(0, 2) == 0) {
    const auto any = [&] {
      return Job::Compute(0, pick(0, stages - 1), pick(0, microbatches - 1),
                          pick(0, 1) == 0 ? JobKind::kForward : JobKind::kBackward);
    };
    const Job before = any(), after = any();
    s.precedes = [before, after](const Job& job) -> std::vector<Job> {
      Job first = before, then = after;
      first.step = then.step = job.step;
      if (job != then || first == then) return {};
      return {first};
    };
  }
  RunTerms terms;
  terms.takes_norm = seed % 4 == 0;
  *text = absl::StrCat("seed ", seed, ": S=", stages, " B=", microbatches, " W=", ranks);
  return {std::move(s), std::move(terms)};
}

// What is accepted runs in every order of starts in which the dispatch may start it; what is refused stops in
// one.
TEST(DeadlockProof, RandomLimitsStalenessAndOrderEdges_TheVerdictIsThatOfEveryOrderOfStarts) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 1500;
  int proved = 0, saved = 0, refused = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::string text;
    const RunSchedule schedule = Draw(seed, &text);
    const absl::Status sound = CheckSchedule(schedule);
    if (!sound.ok() && std::string(sound.message()).find("cycle") != std::string::npos) continue;
    const Graph graph(schedule);
    bool stops = false;
    for (int steps : {1, 2, 3, 4}) {
      const Truth unclaimed = Walk(graph, steps).Run();
      if (unclaimed == Truth::kTooLarge) break;
      stops |= unclaimed == Truth::kDeadlocks;
      if (!sound.ok()) continue;
      const bool claims = NeedsClaimOrder(graph);
      const Truth truth = claims ? Walk(graph, steps, claims).Run() : unclaimed;
      if (truth == Truth::kTooLarge) break;
      ASSERT_EQ(truth, Truth::kFree) << text << ", " << steps << " steps";
      if (steps < 3) continue;
      ++proved;
      saved += unclaimed == Truth::kDeadlocks;
    }
    ASSERT_TRUE(sound.ok() || stops) << text << ": " << sound;
    refused += !sound.ok();
  }
  if (only != nullptr) return;
  std::cout << proved << " proved free, " << saved << " of them by the order of claims alone, " << refused
            << " refused\n";
  EXPECT_GT(proved, 300);
  EXPECT_GT(saved, 50);
  EXPECT_GT(refused, 20);
}

// Micro-batches can wait for one another where stages have several inputs: the order of claims keeps them
// apart.
TEST(DeadlockProof, RandomStagesThatAreNoChain_AreFreeWhereAdmittedAsClaimed) {
  const char* only = std::getenv("WEFT_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 400;
  int proved = 0, saved = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::mt19937_64 rng(seed);
    const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
    const int stages = pick(3, 4), microbatches = pick(2, 3), ranks = pick(2, stages);
    Schedule s = *MakeSchedule("1f1b", {}, stages, microbatches);
    RunTerms terms;
    terms.inputs.resize(stages);
    for (int i = 0; i + 1 < stages; ++i) terms.inputs[stages - 1].push_back(i);
    if (stages == 4 && pick(0, 1) == 1) terms.inputs[2] = {pick(0, 1)};
    s.ranks = ranks;
    s.compute = s.weights = [ranks](const Job& j) { return j.stage % ranks; };
    std::vector<int> limits;
    for (int i = 0; i < stages; ++i) limits.push_back(pick(1, 2));
    s.limit = [limits](Rank, int stage) -> std::optional<int> { return limits[stage]; };
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const RunSchedule schedule(std::move(s), std::move(terms));
    const Graph graph(schedule);
    const absl::Status sound = CheckSchedule(schedule);
    for (int steps : {1, 2}) {
      if (!sound.ok()) continue;
      const Truth truth = Walk(graph, steps, /*claims=*/true).Run();
      if (truth == Truth::kTooLarge) continue;
      ASSERT_EQ(truth, Truth::kFree) << steps << " steps";
      ++proved;
      saved += Walk(graph, steps).Run() == Truth::kDeadlocks;
    }
  }
  if (only != nullptr) return;
  std::cout << proved << " proved free, " << saved << " of them by the order of claims alone\n";
  EXPECT_GT(proved, 100);
  EXPECT_GT(saved, 20);
}

TEST(DeadlockProof, LimitsOfAnySizeWithoutStaleness_AreFree) {
  for (int limit : {1, 2, 5}) {
    Schedule s = *MakeSchedule("lpp", {{"groups", "2"}, {"ranks", "2"}}, 8, 64);
    s.limit = [limit](Rank, int) -> std::optional<int> { return limit; };
    EXPECT_TRUE(ProveDeadlockFree(Graph(WithoutTerms(s))).ok());
  }
}

// One update a micro-batch, staleness S-1-s, limit S-s: PipeDream's.
TEST(DeadlockProof, StalenessThatFallsAlongThePipeline_IsFree) {
  for (int stages : {1, 2, 4, 8}) {
    Schedule s = *MakeSchedule("1f1b", {}, stages, 1);
    s.staleness = [stages](int stage, int) { return stages - 1 - stage; };
    EXPECT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
  }
}

// Micro-batch 0 could run a step ahead on the first stage, and would then need the version that micro-batch 1
// makes, whose place it had taken. The order of claims lets micro-batch 1 go first.
TEST(DeadlockProof, PlaceThatTheNextStepCouldTake_IsKeptByTheOrderOfClaims) {
  Schedule s = *MakeSchedule("1f1b", {}, 2, 2);
  s.limit = [](Rank, int) -> std::optional<int> { return 1; };
  s.staleness = [](int stage, int b) { return b == 0 && stage == 0 ? 1 : 0; };
  EXPECT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
  SimulationOptions options;
  options.steps = 4;
  const Graph graph(WithoutTerms(s));
  EXPECT_EQ(Walk(graph, 2).Run(), Truth::kDeadlocks);
  EXPECT_EQ(Walk(graph, 2, /*claims=*/true).Run(), Truth::kFree);
  const auto run = Simulate(graph, options);
  EXPECT_TRUE(run.ok()) << run.status();
}

TEST(DeadlockProof, FixedOrderBeyondItsLimit_IsNamed) {
  Schedule s = *MakeSchedule("zb_h2", {}, 4, 8);
  s.limit = [](Rank, int) -> std::optional<int> { return 7; };
  EXPECT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
  s.limit = [](Rank, int stage) -> std::optional<int> { return stage == 2 ? 6 : 7; };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()),
              HasSubstr("forward (step 0, stage 2, micro-batch 6) comes in the order of rank 2 while 6"));
}

TEST(DeadlockProof, ManyForwardsOfOldWeights_AreProvedByOneNominalRun) {
  Schedule s = *MakeSchedule("1f1b", {}, 8, 1000);
  s.staleness = [](int stage, int) { return stage == 0 ? 1 : 0; };
  EXPECT_TRUE(CheckSchedule(WithoutTerms(s)).ok()) << CheckSchedule(WithoutTerms(s));
}

}  // namespace
}  // namespace weft
