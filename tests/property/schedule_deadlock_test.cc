// The proof that limits and budgets of bytes cannot deadlock, against the truth: every order in which the
// jobs of small random schedules can start is walked through.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
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
#include "schedules/sync/catalogue.h"
#include "schedules/sync/given_tensors.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_deadlock_test {
namespace {

using ::testing::HasSubstr;

// The seeds of a test: `many` of them; WEFT_SEED=N: that one; WEFT_SEEDS=N: so many.
struct Seeds {
  explicit Seeds(uint64_t many) : last(many) {
    const char* const one = std::getenv("WEFT_SEED");
    const char* const other = std::getenv("WEFT_SEEDS");
    if (other != nullptr) last = std::strtoull(other, nullptr, 10);
    if (one == nullptr) return;
    first = last = std::strtoull(one, nullptr, 10);
    single = true;
  }
  uint64_t first = 1, last;
  bool single = false;
};

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
    OrderByRows(steps);
    CountTickets(steps);
    const GivenTensors given(graph);
    for (int j = 0; j < jobs_; ++j) {
      std::vector<Edge> edges;
      graph.Predecessors(JobOf(j), &edges);
      for (const Edge& e : edges) {
        if (e.from.step >= 0) before_[j] |= uint64_t{1} << Number(e.from);
        for (const Job& waiting : given.JobsBehind(graph, e)) AwaitReader(waiting, j, steps);
      }
    }
  }

  bool waits_for_readers() const { return waits_for_readers_; }
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
  // Within a budget some jobs wait until the readers of older weights and sums are done.
  void AwaitReader(const Job& waiting, int reader, int steps) {
    if (waiting.step < 0 || waiting.step >= steps) return;
    before_[Number(waiting)] |= uint64_t{1} << reader;
    waits_for_readers_ = true;
  }
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
  // A job of a fixed order starts behind the one before it, and the first of a step behind the last of the
  // step before.
  void OrderByRows(int steps) {
    for (const std::vector<Job>& row : graph_.schedule().order) {
      int before = -1;
      for (int step = 0; step < steps; ++step) {
        for (Job job : row) {
          job.step = step;
          if (before >= 0) before_[Number(job)] |= uint64_t{1} << before;
          before = Number(job);
        }
      }
    }
  }
  // A rank gives its forwards room in one order: as it lists them, or by step, micro-batch and stage.
  void CountTickets(int steps) {
    const auto& memory = graph_.terms().memory;
    if (!memory.has_value()) return;
    room_.assign(jobs_, 0);
    std::vector<int64_t> given(graph_.schedule().ranks, 0);  // bytes for all forwards so far
    const auto give = [&](Job forward, int step) {
      forward.step = step;
      int64_t& bytes = given[graph_.RankOf(forward)];
      room_[Number(forward)] = bytes += RoomOf(forward.stage);
    };
    for (int step = 0; step < steps; ++step) {
      for (const std::vector<Job>& row : graph_.schedule().order) {
        for (const Job& job : row) {
          if (job.kind == JobKind::kForward) give(job, step);
        }
      }
      if (graph_.replays()) continue;
      for (int b = 0; b < graph_.schedule().microbatches; ++b) {
        for (int stage = 0; stage < graph_.schedule().stages; ++stage)
          give(Job::Compute(step, stage, b, JobKind::kForward), step);
      }
    }
  }
  int64_t GradientOf(int stage) const {
    return graph_.protocol(stage).gradients_leave() ? graph_.terms().memory->GradientOf(stage) : 0;
  }
  int64_t RoomOf(int stage) const {
    return std::max(graph_.terms().memory->activation_bytes[stage], GradientOf(stage));
  }
  // Returns true if the backward's gradient has been summed, which goes in the order of micro-batches.
  bool IsTaken(Job backward, uint64_t done) const {
    for (; backward.microbatch >= 0; --backward.microbatch) {
      if (!(done >> Number(backward) & 1)) return false;
    }
    return true;
  }
  // Returns true if the forward, and all that get room on its rank before it, fit the budget beside nothing
  // but themselves: less those whose backwards have run, of which the gradients stay until they are taken.
  bool HasRoom(int j, uint64_t done) const {
    if (room_.empty()) return true;
    const Rank rank = graph_.RankOf(JobOf(j));
    int64_t bytes = room_[j];
    for (int other = 0; other < jobs_; ++other) {
      const Job job = JobOf(other);
      if (job.kind != graph_.final_backward() || graph_.RankOf(job) != rank || !(done >> other & 1)) continue;
      bytes -= RoomOf(job.stage) - (IsTaken(job, done) ? 0 : GradientOf(job.stage));
    }
    return bytes <= graph_.terms().memory->budget[rank];
  }
  Job JobOf(int number) const { return graph_.JobAt(number / n_, number % n_); }
  int Number(const Job& job) const { return job.step * n_ + graph_.IndexOf(job); }
  bool Admitted(int j, uint64_t done) const {
    const Job job = JobOf(j);
    if (job.kind != JobKind::kForward) return true;
    if (!HasRoom(j, done)) return false;
    if (!graph_.schedule().limit) return true;
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
  bool waits_for_readers_ = false;
  std::vector<int64_t>
      room_;  // of a forward: bytes of all that get room on its rank up to it; empty: no budget
};

// Draws bytes of each stage, of its activations and its gradient, and budgets: mostly some that hold back,
// and seldom one in which a micro-batch does not fit.
template <typename Pick>
ActivationMemory DrawMemory(const Schedule& s, const Pick& pick) {
  ActivationMemory memory;
  const Graph graph(WithoutTerms(s));
  for (int stage = 0; stage < s.stages; ++stage) {
    memory.activation_bytes.push_back(pick(1, 3));
    memory.gradient_bytes.push_back(graph.protocol(stage).gradients_leave() ? pick(0, 3) : 0);
  }
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    int64_t least = 1;  // of a micro-batch
    for (int b = 0; b < s.microbatches; ++b) {
      int64_t bytes = 0;
      for (int stage = 0; stage < s.stages; ++stage) {
        if (s.compute(Job::Compute(0, stage, b, JobKind::kForward)) == rank) bytes += memory.RoomOf(stage);
      }
      least = std::max(least, bytes);
    }
    memory.budget.push_back(std::max<int64_t>(1, least + pick(0, 5) - (pick(0, 15) == 0 ? 1 : 0)));
  }
  return memory;
}

// Limits with random staleness, order edges or budgets on a pipeline, on stages that share ranks, or on ranks
// that deal the micro-batches, whose gradients leave them.
RunSchedule Draw(uint64_t seed, std::string* text) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  const int stages = pick(1, 3), microbatches = pick(1, 3), ranks = pick(1, stages);
  Schedule s = *MakeSchedule("gpipe", {}, stages, microbatches);
  s.ranks = ranks;
  const bool deals = pick(0, 2) == 0;
  s.compute =
      s.weights = [ranks, deals](const Job& j) { return (j.stage + (deals ? j.microbatch : 0)) % ranks; };
  // Versions of weights leave their holders: to all ranks that compute with them, or from one holder to the
  // next.
  if (deals && seed % 2 == 1) s.weights = [ranks](const Job& j) { return j.stage % ranks; };
  if (deals && seed % 4 == 2) s.sync = Relayed();
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
  if (pick(0, 1) == 0) terms.memory = DrawMemory(s, pick);
  *text = absl::StrCat("seed ", seed, ": S=", stages, " B=", microbatches, " W=", ranks);
  return {std::move(s), std::move(terms)};
}

// An accepted schedule ends in every order of starts that the dispatch allows; a refused one stops in at
// least one.
TEST(DeadlockProof, RandomLimitsBudgetsStalenessAndOrderEdges_TheVerdictIsThatOfEveryOrderOfStarts) {
  const Seeds seeds(1500);
  int proved = 0, saved = 0, refused = 0, budgets = 0, refused_budgets = 0, given = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    std::string text;
    const RunSchedule schedule = Draw(seed, &text);
    const absl::Status sound = CheckSchedule(schedule);
    if (!sound.ok() && std::string(sound.message()).find("cycle") != std::string::npos) continue;
    const Graph graph(schedule);
    bool stops = false;
    for (int steps : {1, 2, 3, 4}) {
      Walk walk(graph, steps);
      const Truth unclaimed = walk.Run();
      if (unclaimed == Truth::kTooLarge) break;
      stops |= unclaimed == Truth::kDeadlocks;
      if (!sound.ok()) continue;
      const bool claims = NeedsClaimOrder(graph);
      const Truth truth = claims ? Walk(graph, steps, claims).Run() : unclaimed;
      if (truth == Truth::kTooLarge) break;
      ASSERT_EQ(truth, Truth::kFree) << text << ", " << steps << " steps";
      if (steps < 3) continue;
      ++proved;
      budgets += schedule.terms.memory.has_value();
      given += walk.waits_for_readers();
      saved += unclaimed == Truth::kDeadlocks;
    }
    ASSERT_TRUE(sound.ok() || stops) << text << ": " << sound;
    refused += !sound.ok();
    refused_budgets += !sound.ok() && schedule.terms.memory.has_value();
  }
  if (seeds.single) return;
  std::cout << proved << " proved free, " << saved << " of them by the order of claims alone, " << budgets
            << " within a budget of bytes, " << given << " where jobs wait for readers; " << refused
            << " refused, " << refused_budgets << " of them with a budget\n";
  EXPECT_GT(proved, 300);
  EXPECT_GT(budgets, 150);
  EXPECT_GT(refused_budgets, 20);
  EXPECT_GT(given, 50);
  EXPECT_GT(saved, 50);
  EXPECT_GT(refused, 20);
}

// Micro-batches can wait for one another where stages have several inputs: the order of claims keeps them
// apart.
TEST(DeadlockProof, RandomStagesThatAreNoChain_AreFreeWhereAdmittedAsClaimed) {
  const Seeds seeds(400);
  int proved = 0, saved = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
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
    if (pick(0, 1) == 0) terms.memory = DrawMemory(s, pick);
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
  if (seeds.single) return;
  std::cout << proved << " proved free, " << saved << " of them by the order of claims alone\n";
  EXPECT_GT(proved, 100);
  EXPECT_GT(saved, 20);
}

// A random placement of each job, and rows that run it: an order in which the jobs can start, with some
// neighbours exchanged, under random limits, budgets and staleness.
RunSchedule DrawRows(uint64_t seed, std::string* text) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int from, int to) { return from + static_cast<int>(rng() % (to - from + 1)); };
  const int stages = pick(1, 3), microbatches = pick(1, 3), ranks = pick(1, 3);
  Schedule s = *MakeSchedule("gpipe", {}, stages, microbatches);
  s.ranks = ranks;
  std::vector<int> place;
  for (int i = 0; i < stages * microbatches; ++i) place.push_back(pick(0, ranks - 1));
  const bool by_stage = pick(0, 1) == 0;
  s.compute = s.weights = [place, by_stage, microbatches](const Job& j) {
    return place[j.stage * microbatches + (by_stage ? 0 : j.microbatch)];
  };
  std::vector<Job> remaining;
  for (int stage = 0; stage < stages; ++stage) {
    for (int b = 0; b < microbatches; ++b) {
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward})
        remaining.push_back(Job::Compute(0, stage, b, kind));
    }
  }
  const auto waits_for = [&](const Job& job) -> std::optional<Job> {
    if (job.kind == JobKind::kForward && job.stage == 0) return std::nullopt;
    if (job.kind == JobKind::kForward) return Job::Compute(0, job.stage - 1, job.microbatch, job.kind);
    if (job.stage == stages - 1) return Job::Compute(0, job.stage, job.microbatch, JobKind::kForward);
    return Job::Compute(0, job.stage + 1, job.microbatch, job.kind);
  };
  s.order.resize(ranks);
  while (!remaining.empty()) {
    const int i = pick(0, static_cast<int>(remaining.size()) - 1);
    const auto first = waits_for(remaining[i]);
    if (first.has_value() && std::find(remaining.begin(), remaining.end(), *first) != remaining.end())
      continue;
    s.order[s.compute(remaining[i])].push_back(remaining[i]);
    remaining.erase(remaining.begin() + i);
  }
  const int exchanges = pick(0, 3);
  for (int i = 0; i < exchanges; ++i) {
    std::vector<Job>& row = s.order[pick(0, ranks - 1)];
    if (row.size() < 2) continue;
    const int at = pick(0, static_cast<int>(row.size()) - 2);
    std::swap(row[at], row[at + 1]);
  }
  if (pick(0, 1) == 0) {
    std::vector<int> limits;
    for (int i = 0; i < stages; ++i) limits.push_back(pick(1, microbatches));
    s.limit = [limits](Rank, int stage) -> std::optional<int> { return limits[stage]; };
  }
  if (pick(0, 2) == 0) s.staleness = [](int stage, int) { return stage == 0 ? 1 : 0; };
  *text = absl::StrCat("seed ", seed, ": S=", stages, " B=", microbatches, " W=", ranks);
  RunSchedule schedule = WithoutTerms(std::move(s));
  if (pick(0, 2) == 0) schedule.terms.memory = DrawMemory(schedule.scheme, pick);
  return schedule;
}

TEST(DeadlockProof, RandomRowsOfRandomPlacements_TheVerdictIsThatOfTheRun) {
  const Seeds seeds(1500);
  int free = 0, refused = 0, free_budgets = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    std::string text;
    const RunSchedule schedule = DrawRows(seed, &text);
    const absl::Status sound = CheckSchedule(schedule);
    const Graph graph(schedule);
    bool stops = false, known = false;
    for (int steps : {1, 2, 3}) {
      const Truth truth = Walk(graph, steps).Run();
      if (truth == Truth::kTooLarge) break;
      known = true;
      stops |= truth == Truth::kDeadlocks;
    }
    if (!known) continue;
    ASSERT_EQ(sound.ok(), !stops) << text << ": " << sound;
    free += !stops;
    free_budgets += !stops && schedule.terms.memory.has_value();
    refused += stops;
  }
  if (seeds.single) return;
  std::cout << free << " run to their end, " << free_budgets << " of them within a budget of bytes; "
            << refused << " refused\n";
  EXPECT_GT(free_budgets, 50);
  EXPECT_GT(free, 300);
  EXPECT_GT(refused, 300);
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
}  // namespace weft::schedule_deadlock_test
