// The families beyond the plain pipelines, but those that split backwards, each against its published closed
// forms, inside and outside their conditions; and what crosses between ranks, of all.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/families/candidates.h"
#include "schedules/families/leading_stages.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/simulated_family.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_families_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Parameters Ranks(int ranks) { return {{"ranks", absl::StrCat(ranks)}}; }
Parameters Groups(int groups, int ranks) {
  return {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ranks)}};
}

int64_t Fetches(const SimulationResult& run) {
  int64_t fetches = 0;
  for (const RankStats& r : run.ranks) fetches += r.weight_fetches;
  return fetches;
}

// ---- leading stages

// Returns the inputs of a chain behind `leading` stages of tied parameters: each is read by the next one, and
// by the last stage or the first of the chain.
std::vector<std::vector<int>> InputsBehind(int leading, int stages) {
  std::vector<std::vector<int>> inputs(leading + stages);
  for (int s = 1; s < leading + stages; ++s) inputs[s] = {s - 1};
  if (stages > 1) inputs.back() = {leading - 1, leading + stages - 2};
  return inputs;
}

SimulationOptions CostsBehind(int leading, int stages) {
  SimulationOptions costs;
  for (std::vector<double>& duration : costs.duration) {
    const double each = duration[0];
    duration.assign(leading + stages, each);
    std::fill_n(duration.begin(), leading, 0);
  }
  return costs;
}

// A leading stage takes no rank, and, as long as it takes no time, it changes no step.
TEST(LeadingStages, EveryFamily_KeepsItsRanksItsStepAndItsSoundness) {
  for (const int stages : {2, 4}) {
    std::vector<Candidate> all = Candidates(stages, 4);
    for (const Candidate& old : OldWeightCandidates(stages, 4)) all.push_back(old);
    int tried = 0;
    for (const Candidate& c : all) {
      for (const int leading : {1, 2}) {
        auto schedule = MakeSchedule(c.name, c.parameters, stages, 4);
        if (!schedule.ok() || !ApplyRule(c.rule, c.name, &*schedule).ok()) continue;
        SCOPED_TRACE(absl::StrCat(c.name, " ", c.rule, " ", stages, " stages behind ", leading));
        const auto alone = Simulate(Graph(WithoutTerms(*schedule)), SimulationOptions{.steps = 4});
        ASSERT_TRUE(alone.ok()) << alone.status();
        const int ranks = schedule->ranks;
        AddLeadingStages(leading, &*schedule);
        RunTerms terms;
        terms.inputs = InputsBehind(leading, stages);
        const RunSchedule with(*schedule, terms);
        EXPECT_TRUE(CheckSchedule(with).ok()) << CheckSchedule(with);
        EXPECT_EQ(with.scheme.ranks, ranks);
        EXPECT_EQ(with.scheme.stages, leading + stages);
        SimulationOptions costs = CostsBehind(leading, stages);
        costs.steps = 4;
        const auto run = Simulate(Graph(with), costs);
        ASSERT_TRUE(run.ok()) << run.status();
        EXPECT_DOUBLE_EQ(run->makespan, alone->makespan);
        ++tried;
      }
    }
    EXPECT_GT(tried, static_cast<int>(all.size()))
        << "of " << all.size() << " candidates behind 1 and 2 stages";
  }
}

// A state is on the rank of the first stage's for each of its jobs, and moves as often.
TEST(LeadingStages, MigratingStates_GoWithThatOfTheFirstStage) {
  auto schedule = MakeSchedule("fsdp", {{"residency", "migrating"}}, 4, 4);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  ASSERT_TRUE(ApplyRule("cdp_v2", "fsdp", &*schedule).ok());
  AddLeadingStages(2, &*schedule);
  RunTerms terms;
  terms.inputs = InputsBehind(2, 4);
  const Graph graph(RunSchedule(*schedule, terms));
  std::vector<int> moves(graph.schedule().stages);
  for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
    for (int b = 0; b < 4; ++b) {
      for (int s = 0; s < graph.schedule().stages; ++s) {
        const Job job = Job::Compute(1, s, b, kind);
        std::vector<Operation> operations;
        graph.Operations(job, &operations);
        moves[s] +=
            static_cast<int>(std::count(operations.begin(), operations.end(), Operation::kReceiveState));
        if (s < 2) {
          EXPECT_EQ(graph.RankOf(job), graph.RankOf(Job::Compute(1, 2, b, kind)));
        }
      }
    }
  }
  EXPECT_GT(moves[2], 0);
  EXPECT_EQ(moves[0], moves[2]);
  EXPECT_EQ(moves[1], moves[2]);
}

TEST(LeadingStages, CostsOfTheirStages_JoinThoseOfTheFirst) {
  SimulationOptions costs;
  costs.duration[0] = {1, 2, 3, 4};
  costs.output = {10, 20, 30, 40};
  costs.activation = {5, 6, 7, 8};
  const SimulationOptions joined = JoinLeadingStages(2, 4, costs);
  EXPECT_THAT(joined.duration[0], ElementsAre(6, 4));
  EXPECT_THAT(joined.output, ElementsAre(30, 40)) << "a stage hands on the output of its last layer";
  EXPECT_THAT(joined.activation, ElementsAre(18, 8));
}

// ---- data parallel

TEST(Fsdp, AnySize_TakesDdpsTimeAndFetchesEveryStageItDoesNotOwnTwice) {
  for (int stages : {1, 3, 4, 9}) {
    for (int ranks : {1, 4, 8}) {
      const auto run = MustSimulate("fsdp", {}, stages, ranks);
      EXPECT_DOUBLE_EQ(run.makespan, 3.0 * stages);
      for (int r = 0; r < ranks; ++r) {
        int owned = 0;
        for (int s = 0; s < stages; ++s) owned += s % ranks == r;
        EXPECT_EQ(run.ranks[r].weight_fetches, 2 * (stages - owned)) << "rank " << r << " of " << ranks;
        EXPECT_EQ(run.ranks[r].peak_activations, stages);
      }
    }
  }
}

TEST(Fsdp, BytesOfARank_AreFetchedWeightsAndOthersGradients) {
  auto schedule = MakeSchedule("fsdp", {}, 2, 2);
  SimulationOptions options;
  options.weight = {10};
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  ASSERT_TRUE(run.ok());
  const RankStats& second = run->ranks[1];
  EXPECT_DOUBLE_EQ(second.bytes_received, 3 * 10) << "weights of stage 0 twice, the gradient of stage 1 once";
  EXPECT_DOUBLE_EQ(second.sent_by_kind[static_cast<int>(TensorKind::kGradient)], 10);
}

// Gathered for the forward and again for the backward, scattered once: 3 w (W-1)/W a stage, in and out.
TEST(FsdpByWidth, AnySize_TakesDdpsTimeAndMovesTheClosedFormsBytes) {
  for (int stages : {1, 3, 8}) {
    for (int ranks : {1, 2, 4, 8}) {
      for (int steps : {1, 3}) {
        SCOPED_TRACE(absl::StrCat(stages, " stages, ", ranks, " ranks, ", steps, " steps"));
        const auto schedule = MakeSchedule("fsdp", {{"shard", "width"}}, stages, ranks);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
        SimulationOptions options;
        options.weight = {ranks * 10.0};
        options.state = {ranks * 30.0};
        options.duration[static_cast<int>(JobKind::kBackward)] = {2};
        options.steps = steps;
        const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
        ASSERT_TRUE(run.ok()) << run.status();
        EXPECT_DOUBLE_EQ(run->makespan, 3.0 * stages * steps);
        for (const RankStats& r : run->ranks) {
          const double slices = 10.0 * (ranks - 1) * stages * steps;
          EXPECT_DOUBLE_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kWeights)], 2 * slices);
          EXPECT_DOUBLE_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kGradient)], slices);
          EXPECT_DOUBLE_EQ(r.bytes_received, 3 * slices);
          EXPECT_DOUBLE_EQ(r.bytes_sent, 3 * slices);
          EXPECT_EQ(r.weight_fetches, ranks > 1 ? 2 * stages * steps : 0);
          EXPECT_EQ(r.peak_weight_versions, 1);
          // A slice of each stage, and a gathered copy of one where there are others' slices.
          EXPECT_DOUBLE_EQ(r.held_bytes, 40.0 * stages + (ranks > 1 ? 10 * ranks : 0));
        }
      }
    }
  }
}

TEST(Fsdp, EitherShard_IsSound_OthersAreRefused) {
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*MakeSchedule("fsdp", {{"shard", "width"}}, 4, 4))).ok());
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*MakeSchedule("fsdp", {}, 4, 4))).ok());
  EXPECT_THAT(Refusal("fsdp", {{"shard", "depth"}}, 4, 4), HasSubstr("must be stage or width"));
}

TEST(Fslpp, OwnersAllDiffer_OneStageOfWeightsARank) {
  // h(s, s) is one-to-one for S <= lcm(G, R).
  for (const auto& [groups, ring, stages] :
       {std::tuple{2, 3, 6}, std::tuple{3, 4, 12}, std::tuple{1, 4, 4}}) {
    const Graph graph(WithoutTerms(*MakeSchedule("fslpp", Groups(groups, ring), stages, 12)));
    std::vector<int> held(graph.schedule().ranks, 0);
    for (int s = 0; s < stages; ++s) {
      ASSERT_EQ(graph.members(s).size(), 1u);
      ++held[graph.members(s)[0]];
    }
    EXPECT_EQ(*std::max_element(held.begin(), held.end()), 1);
  }
}

TEST(Fslpp, OwnersCollide_SomeRanksHoldMoreAndSomeNone) {
  // S = 4 > lcm(2, 2) = 2: only two owners.
  const Graph graph(WithoutTerms(*MakeSchedule("fslpp", Groups(2, 2), 4, 8)));
  std::vector<int> held(4, 0);
  for (int s = 0; s < 4; ++s) ++held[graph.members(s)[0]];
  EXPECT_EQ(held, (std::vector<int>{2, 0, 0, 2}));
}

// Four of the stages pass each rank, with four micro-batches each.
TEST(Fslpp, MicrobatchesThatPassARankOnAStage_ShareOneFetchedCopy) {
  Parameters formulas = {{"ranks", "16"},
                         {"compute", "(4*b) % W + s % 4"},
                         {"weights", "(4*s) % W + s % 4"},
                         {"order", "forwards_first"}};
  const auto most_fetches = [](const Schedule& schedule) {
    SimulationOptions options;
    options.weight = {1};
    const auto run = Simulate(Graph(WithoutTerms(schedule)), options);
    EXPECT_TRUE(run.ok()) << run.status();
    int64_t most = 0;
    double sent = 0;
    for (const RankStats& rank : run->ranks) {
      most = std::max(most, rank.weight_fetches);
      sent += rank.sent_by_kind[static_cast<int>(TensorKind::kWeights)];
    }
    EXPECT_DOUBLE_EQ(sent, static_cast<double>(Fetches(*run))) << "what is sent is what is fetched";
    return most;
  };
  EXPECT_EQ(most_fetches(*MakeSchedule("custom", formulas, 16, 16)), 2 * 16) << "each job fetches";
  EXPECT_EQ(most_fetches(*MakeSchedule("fslpp", Groups(4, 4), 16, 16)), 2 * 16 / 4)
      << "each stage once forward, and once backward";
}

TEST(Fslpp, FreeTransfers_TakesLppsTime) {
  for (const auto& [groups, ring, stages, microbatches] :
       {std::tuple{2, 4, 16, 8}, std::tuple{8, 8, 64, 32}, std::tuple{2, 2, 4, 8}}) {
    const auto shared = MustSimulate("fslpp", Groups(groups, ring), stages, microbatches);
    const auto owned = MustSimulate("lpp", Groups(groups, ring), stages, microbatches);
    EXPECT_DOUBLE_EQ(shared.makespan, owned.makespan);
    EXPECT_EQ(Fetches(owned), 0);
    EXPECT_GT(Fetches(shared), 0);
  }
}

// ---- stages round the ranks

// (p-1)(F+B)/v of a rank's whole work, which is (p-1) times one chunk's forward and backward.
TEST(Interleaved, GroupsThatDivide_BubbleIsThePipelinesOverTheChunks) {
  for (int ranks : {1, 2, 4, 8}) {
    for (int chunks : {2, 3, 4}) {
      for (int groups : {1, 2, 5}) {
        for (const Times& t : {Times{1, 1}, Times{1, 2}, Times{2, 3}}) {
          const int microbatches = groups * ranks;
          const auto run = MustSimulate("interleaved", Ranks(ranks), chunks * ranks, microbatches, t);
          const double unit = t.forward + t.backward;
          EXPECT_DOUBLE_EQ(run.makespan, (microbatches * chunks + ranks - 1) * unit)
              << ranks << " ranks, " << chunks << " chunks, " << microbatches << " micro-batches";
        }
      }
    }
  }
}

TEST(Interleaved, ManyMicrobatches_HoldsWarmUpPlusOneActivations) {
  for (int ranks : {2, 4}) {
    for (int chunks : {2, 4}) {
      const auto run = MustSimulate("interleaved", Ranks(ranks), chunks * ranks, 8 * ranks);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(run.ranks[r].peak_activations, 2 * (ranks - 1 - r) + (chunks - 1) * ranks + 1);
      }
    }
  }
}

TEST(Interleaved, LargerGroups_AreAcceptedWhereTheLastIsLargeEnough) {
  const Parameters groups_of_6 = {{"ranks", "4"}, {"group", "6"}};
  EXPECT_GE(MustSimulate("interleaved", groups_of_6, 8, 12).makespan, 12 * 2 * 3);
  EXPECT_GE(MustSimulate("interleaved", groups_of_6, 8, 10).makespan, 10 * 2 * 3);
  EXPECT_THAT(Refusal("interleaved", groups_of_6, 8, 14), HasSubstr("a last group of 2"));
}

TEST(Interleaved, BrokenConstraints_AreRefusedWithTheReason) {
  EXPECT_THAT(Refusal("interleaved", {}, 8, 8), HasSubstr("needs `ranks`"));
  EXPECT_THAT(Refusal("interleaved", Ranks(4), 4, 8), HasSubstr("1f1b"));
  EXPECT_THAT(Refusal("interleaved", Ranks(4), 10, 8), HasSubstr("2, 3, .. times"));
  EXPECT_THAT(Refusal("interleaved", Ranks(4), 8, 3), HasSubstr("at least as many micro-batches as ranks"));
  EXPECT_THAT(Refusal("interleaved", Ranks(4), 8, 9), HasSubstr("a last group of 1"));
  EXPECT_THAT(Refusal("interleaved", {{"ranks", "4"}, {"group", "3"}}, 8, 12), HasSubstr("group=3"));
  EXPECT_THAT(Refusal("interleaved", {{"ranks", "4"}, {"group", "13"}}, 8, 12), HasSubstr("group=13"));
  EXPECT_THAT(Refusal("interleaved", Ranks(2), 2000, 20000), HasSubstr("80000000 jobs"));
}

TEST(BreadthFirst, AtLeastAsManyMicrobatchesAsRanks_BubbleIsGPipesOverTheChunks) {
  for (int ranks : {2, 4}) {
    for (int chunks : {2, 3}) {
      for (int microbatches : {ranks, ranks + 1, 3 * ranks}) {
        const auto run = MustSimulate("breadth_first", Ranks(ranks), chunks * ranks, microbatches);
        EXPECT_DOUBLE_EQ(run.makespan, 3.0 * (microbatches * chunks + ranks - 1));
        EXPECT_EQ(MaxActivations(run), microbatches * chunks);
      }
    }
  }
}

TEST(BreadthFirst, FirstRank_PassesAllMicrobatchesThroughAStageBeforeTheNext) {
  auto schedule = MakeSchedule("breadth_first", Ranks(2), 4, 4);
  SimulationOptions options;
  options.record_jobs = true;
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  std::vector<std::pair<int, int>> forwards;
  for (const SimulatedJob& j : run->jobs) {
    if (j.rank == 0 && j.job.kind == JobKind::kForward) forwards.push_back({j.job.stage, j.job.microbatch});
  }
  EXPECT_EQ(forwards, (std::vector<std::pair<int, int>>{
                          {0, 0}, {0, 1}, {0, 2}, {0, 3}, {2, 0}, {2, 1}, {2, 2}, {2, 3}}));
}

TEST(DepthFirst, OldestMicrobatchFirst_EndsMicrobatchesInOrder) {
  auto schedule = MakeSchedule("depth_first", Ranks(2), 4, 6);
  SimulationOptions options;
  options.record_jobs = true;
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  int next = 0;
  for (const SimulatedJob& j : run->jobs) {
    if (j.job.kind == JobKind::kBackward && j.job.stage == 0) {
      EXPECT_EQ(j.job.microbatch, next++);
    }
  }
  EXPECT_EQ(next, 6);
  EXPECT_THAT(Refusal("depth_first", Ranks(2), 5, 6), HasSubstr("2, 3, .. times"));
}

// ---- what crosses between ranks

struct Received {
  int64_t activations = 0, gradients = 0;
};

Received AllReceived(const SimulationResult& run) {
  Received all;
  for (const RankStats& r : run.ranks) {
    all.activations += r.activation_receives;
    all.gradients += r.gradient_receives;
  }
  return all;
}

// Each boundary between stages on different ranks passes every micro-batch once in each direction.
TEST(Transfers, EveryFamily_CrossesEachBoundaryOncePerMicrobatchAndDirection) {
  for (const auto& [stages, microbatches, ranks] :
       {std::tuple{4, 8, 2}, std::tuple{8, 16, 4}, std::tuple{12, 24, 3}}) {
    const int64_t all = int64_t{stages - 1} * microbatches;
    const struct {
      const char* name;
      Parameters parameters;
      int64_t each_way;
    } cases[] = {
        {"ddp", {}, 0},
        {"fsdp", {}, 0},
        {"fsdp", {{"shard", "width"}}, 0},
        {"gpipe", {}, all},
        {"1f1b", {}, all},
        {"zb_h1", {}, all},
        {"zb_h2", {}, all},
        {"lpp", Groups(2, ranks), all},
        {"lpp", Groups(microbatches, 1), 0},
        {"fslpp", Groups(2, ranks), all},
        {"depth_first", Ranks(ranks), all},
        {"breadth_first", Ranks(ranks), all},
        {"interleaved", Ranks(ranks), all},
        // The V turns on one rank.
        {"zb_v", {}, all - microbatches},
        {"v_half", {}, all - microbatches},
        {"v_min", {}, all - microbatches},
        {"dualpipe_v", {}, all - microbatches},
        {"dualpipe", {}, all},
    };
    for (const auto& c : cases) {
      SCOPED_TRACE(absl::StrCat(c.name, " S=", stages, " B=", microbatches));
      const Received received = AllReceived(MustSimulate(c.name, c.parameters, stages, microbatches));
      EXPECT_EQ(received.activations, c.each_way);
      EXPECT_EQ(received.gradients, c.each_way);
    }
  }
}

// Slices of gradients to their summing members, and the sums back: (n-1)/n of the weights each way and copy.
TEST(Transfers, Replicas_SendTheirMicrobatchesGradientsAndOneSum) {
  for (const auto& [name, parameters, replicas] :
       {std::tuple{"ddp", Parameters(), 8}, std::tuple{"lpp", Groups(4, 2), 4},
        std::tuple{"dualpipe", Parameters(), 2}}) {
    const int stages = 4, microbatches = 8;
    const auto schedule = MakeSchedule(name, parameters, stages, microbatches);
    SimulationOptions options;
    options.weight = {replicas * 10.0};
    const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
    ASSERT_TRUE(run.ok()) << run.status();
    double gradients = 0, sums = 0;
    for (const RankStats& r : run->ranks) {
      gradients += r.sent_by_kind[static_cast<int>(TensorKind::kGradient)];
      sums += r.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)];
    }
    EXPECT_DOUBLE_EQ(gradients, 10.0 * (replicas - 1) * stages * microbatches) << name;
    EXPECT_DOUBLE_EQ(sums, 10.0 * (replicas - 1) * stages * replicas) << name;
  }
}

}  // namespace
}  // namespace weft::schedule_families_test
