// Closed forms, constraints and refusals of the schedules.
#include <algorithm>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/graph/step_edges.h"
#include "schedules/nearest.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedules_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Parameters = std::map<std::string, std::string>;

SimulationResult MustSimulate(const std::string& name, const Parameters& parameters, int stages,
                              int microbatches, double forward, double backward, int steps = 1) {
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  SimulationOptions options;
  options.steps = steps;
  options.duration[static_cast<int>(JobKind::kForward)] = {forward};
  options.duration[static_cast<int>(JobKind::kBackward)] = {backward};
  auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *run;
}

Parameters Lpp(int groups, int ranks) {
  return {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ranks)}};
}

TEST(DataParallel, EqualDurations_TakesOneUnitAStage) {
  for (int stages : {1, 4, 9}) {
    for (double backward : {1.0, 2.0}) {
      const auto run = MustSimulate("ddp", {}, stages, 8, 1, backward);
      EXPECT_DOUBLE_EQ(run.makespan, stages * (1 + backward));
      EXPECT_DOUBLE_EQ(run.bubble_ratio, 0);
      for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_activations, stages);
    }
  }
}

TEST(Pipelines, EqualDurations_TakeMicrobatchesPlusStagesMinusOneUnits) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int stages : {1, 2, 4, 7}) {
      for (int microbatches : {1, 2, 8, 20}) {
        for (double backward : {1.0, 2.0}) {
          const auto run = MustSimulate(name, {}, stages, microbatches, 1, backward);
          EXPECT_DOUBLE_EQ(run.makespan, (microbatches + stages - 1) * (1 + backward))
              << name << " S=" << stages << " B=" << microbatches;
        }
      }
    }
  }
}

TEST(OneForwardOneBackward, AnyBatch_HoldsStagesMinusStageActivationsAtMost) {
  const auto run = MustSimulate("1f1b", {}, 6, 20, 1, 2, 3);
  for (int s = 0; s < 6; ++s) EXPECT_EQ(run.ranks[s].peak_activations, 6 - s);
  const auto few = MustSimulate("1f1b", {}, 6, 2, 1, 2);
  for (int s = 0; s < 6; ++s) EXPECT_EQ(few.ranks[s].peak_activations, std::min(2, 6 - s));
}

TEST(GPipe, AnyBatch_HoldsEveryMicrobatch) {
  const auto run = MustSimulate("gpipe", {}, 4, 8, 1, 1);
  for (const RankStats& r : run.ranks) EXPECT_EQ(r.peak_activations, 8);
}

// The closed form of docs/schedules/lpp.md: S + B/G - 1 units, where B/G <= R.
TEST(LoopedPipelines, ConditionOfTheClosedFormHolds_MeetsIt) {
  struct Size {
    int stages, microbatches, groups, ranks;
  };
  for (const Size& z :
       {Size{64, 32, 8, 8}, Size{16, 8, 2, 4}, Size{16, 4, 2, 4}, Size{8, 8, 2, 4}, Size{12, 6, 3, 3}}) {
    const auto run = MustSimulate("lpp", Lpp(z.groups, z.ranks), z.stages, z.microbatches, 1, 2);
    const int of_group = z.microbatches / z.groups;
    EXPECT_DOUBLE_EQ(run.makespan, 3.0 * (z.stages + of_group - 1));
    EXPECT_EQ(run.ranks[0].peak_activations, z.stages / z.ranks * std::min(z.stages, of_group));
  }
}

TEST(LoopedPipelines, ConditionBroken_ObeysTheWorkBound) {
  const auto run = MustSimulate("lpp", Lpp(2, 2), 4, 8, 1, 2);
  EXPECT_GE(run.makespan, 24);  // S*B/W units of work a rank
  EXPECT_LE(run.makespan, 28);
}

TEST(LoopedPipelines, OneGroupOfAllStages_IsGPipe) {
  const auto looped = MustSimulate("lpp", Lpp(1, 4), 4, 8, 1, 2);
  const auto gpipe = MustSimulate("gpipe", {}, 4, 8, 1, 2);
  EXPECT_DOUBLE_EQ(looped.makespan, gpipe.makespan);
}

TEST(LoopedPipelines, GroupsOfOneRank_AreDataParallel) {
  const auto looped = MustSimulate("lpp", Lpp(8, 1), 4, 8, 1, 2);
  EXPECT_DOUBLE_EQ(looped.makespan, MustSimulate("ddp", {}, 4, 8, 1, 2).makespan);
  EXPECT_EQ(looped.ranks.size(), 8u);
}

TEST(Simulation, ManySteps_PeriodIsTheStepOfAPipeline) {
  const auto run = MustSimulate("1f1b", {}, 4, 8, 1, 2, 10);
  EXPECT_DOUBLE_EQ(run.period, 33);
  EXPECT_DOUBLE_EQ(run.makespan, 330);
}

TEST(Simulation, PipelineAcrossRanks_CountsReceivesAndBytes) {
  auto schedule = MakeSchedule("1f1b", {}, 4, 8);
  SimulationOptions options;
  options.activation = {10};
  options.weight = {100};
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->ranks[0].activation_receives, 0);
  EXPECT_EQ(run->ranks[0].gradient_receives, 8);
  EXPECT_EQ(run->ranks[3].activation_receives, 8);
  EXPECT_EQ(run->ranks[1].bytes_received, 160);
  EXPECT_EQ(run->ranks[0].weight_fetches, 0);
  EXPECT_EQ(run->ranks[0].peak_activation_bytes, 40);
}

TEST(Simulation, Replicas_ExchangeGradientSlicesAndSums) {
  auto schedule = MakeSchedule("ddp", {}, 2, 4);
  SimulationOptions options;
  options.weight = {100};
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  ASSERT_TRUE(run.ok());
  for (const RankStats& r : run->ranks) {
    // Three slices of a quarter for each stage, and its own quarter of the sum to three others.
    EXPECT_DOUBLE_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kGradient)], 2 * 75);
    EXPECT_DOUBLE_EQ(r.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)], 2 * 75);
    EXPECT_EQ(r.gradient_receives, 0);
  }
}

RunSchedule Clipped(Schedule scheme) {
  RunTerms terms;
  terms.takes_norm = true;
  return {std::move(scheme), terms};
}

// Every update of a step waits for every gradient of that step, through one reduce job that totals the norm.
TEST(Clipping, AnyFamily_UpdatesWaitForAllStagesAndOneNormTravelsToEach) {
  for (const Schedule& schedule :
       {*MakeSchedule("1f1b", {}, 3, 4), *MakeSchedule("ddp", {}, 3, 4),
        *MakeSchedule("fsdp", {{"shard", "width"}}, 3, 4), *MakeSchedule("fsdp", {}, 3, 4)}) {
    SCOPED_TRACE(schedule.name);
    const RunSchedule clipped = Clipped(schedule);
    ASSERT_TRUE(CheckSchedule(clipped).ok()) << CheckSchedule(clipped);
    const Graph graph(clipped);
    SimulationOptions options;
    options.steps = 2;
    options.record_jobs = true;
    const auto run = Simulate(graph, options);
    ASSERT_TRUE(run.ok()) << run.status();
    double last_gradient[2] = {0, 0};
    int reduces = 0, totals = 0, updates = 0;
    for (const SimulatedJob& j : run->jobs) {
      double& last = last_gradient[j.job.step];
      if (HasMicrobatch(j.job.kind)) last = std::max(last, j.end);
      reduces += j.job.step == 0 && j.job.kind == JobKind::kReduce;
      totals += j.job.step == 0 && graph.TotalsNorm(j.job);
      updates += j.job.step == 0 && j.job.kind == JobKind::kUpdate;
    }
    EXPECT_EQ(totals, 1);
    EXPECT_EQ(reduces, updates);
    const StepEdges successors(graph);
    std::vector<Edge> norms;
    for (const SimulatedJob& j : run->jobs) {
      if (j.job.kind == JobKind::kUpdate) {
        EXPECT_GE(j.start, last_gradient[j.job.step]) << Describe(j.job);
      }
      if (j.job.step == 0) successors.AppendSuccessors(graph, j.job, &norms);
    }
    const auto of_norm = std::count_if(norms.begin(), norms.end(),
                                       [](const Edge& e) { return e.tensor == TensorKind::kNorm; });
    EXPECT_EQ(of_norm, reduces - 1 + updates);
  }
}

// The sum of a stage that is held once stays where it was made; of one in slices, each slice does.
TEST(Clipping, StagesHeldOnceOrInSlices_OnlyNormsTravelMore) {
  SimulationOptions options;
  options.weight = {100};
  for (const Schedule& schedule :
       {*MakeSchedule("1f1b", {}, 4, 4), *MakeSchedule("fsdp", {{"shard", "width"}}, 4, 4)}) {
    const auto plain = Simulate(Graph(WithoutTerms(schedule)), options);
    const auto clipped = Simulate(Graph(Clipped(schedule)), options);
    ASSERT_TRUE(plain.ok() && clipped.ok());
    for (size_t r = 0; r < plain->ranks.size(); ++r) {
      const double norms = clipped->ranks[r].sent_by_kind[static_cast<int>(TensorKind::kNorm)];
      EXPECT_EQ(clipped->ranks[r].bytes_sent, plain->ranks[r].bytes_sent + norms) << schedule.name;
      EXPECT_GT(norms, 0);
    }
  }
}

TEST(Simulation, SlowLink_DelaysTheNextStage) {
  auto schedule = MakeSchedule("gpipe", {}, 2, 1);
  SimulationOptions options;
  options.activation = {30};
  options.bandwidth = 10;
  options.latency = 0.5;
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  ASSERT_TRUE(run.ok());
  EXPECT_DOUBLE_EQ(run->makespan, 4 + 2 * 3.5);
}

TEST(Simulation, WrongNumberOfDurations_IsRefused) {
  auto schedule = MakeSchedule("gpipe", {}, 4, 2);
  SimulationOptions options;
  options.duration[0] = {1, 2};
  const auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_THAT(std::string(run.status().message()), HasSubstr("4 stages"));
}

TEST(Families, UnknownName_NamesTheNearest) {
  const auto s = MakeSchedule("1f1", {}, 4, 8);
  EXPECT_EQ(s.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(s.status().message()), HasSubstr("did you mean \"1f1b\"?"));
}

// The plain loop has a formula of its own for each, or for its rule (StalenessOfPlaced in
// worker/shell/reference/reference.cc).
TEST(Families, ThatReadOldWeights_AreThoseThatThePlainLoopKnows) {
  std::vector<std::string> names;
  for (const Family& family : Families()) {
    if (family.reads_old_weights) names.push_back(family.name);
  }
  EXPECT_THAT(names, ElementsAre("cdp_mp", "pipedream", "pipedream_2bw"));
}

TEST(Families, NameThatIsNearNone_HasNoSuggestion) {
  const std::vector<std::string> names = ScheduleNames();
  for (const char* word : {"nope", "x", "llama", "version"}) EXPECT_EQ(Nearest(word, names), "") << word;
  EXPECT_EQ(Nearest("gpip", names), "gpipe");
  EXPECT_EQ(Nearest("1fb1", names), "1f1b") << "two letters that changed places";
  EXPECT_EQ(Nearest("inter", names), "interleaved") << "its beginning";
  EXPECT_EQ(Nearest("R", {"limit", "B"}), "");
}

TEST(Families_Ddp, FewerRanksThanMicrobatches_AccumulateAsLoopsOfOneRankDo) {
  const auto ddp = MakeSchedule("ddp", {{"ranks", "4"}}, 3, 8);
  const auto loops = MakeSchedule("lpp", {{"groups", "4"}, {"ranks", "1"}}, 3, 8);
  ASSERT_TRUE(ddp.ok() && loops.ok()) << ddp.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*ddp)).ok());
  EXPECT_EQ(ddp->ranks, 4);
  for (int b = 0; b < 8; ++b) {
    const Job job = Job::Compute(0, 1, b, JobKind::kBackward);
    EXPECT_EQ(ddp->compute(job), loops->compute(job));
    EXPECT_EQ(ddp->weights(job), loops->weights(job));
  }
  const auto run = Simulate(Graph(WithoutTerms(*ddp)), {});
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->ranks[0].peak_activations, 3) << "of one micro-batch at a time";
  EXPECT_EQ(MakeSchedule("ddp", {}, 3, 8)->ranks, 8);
  EXPECT_THAT(std::string(MakeSchedule("ddp", {{"ranks", "9"}}, 3, 8).status().message()),
              HasSubstr("leave ranks without one"));
}

TEST(Families, BrokenConstraints_AreRefusedWithTheReason) {
  const auto message = [](const Parameters& p, int stages, int microbatches) {
    return std::string(MakeSchedule("lpp", p, stages, microbatches).status().message());
  };
  EXPECT_THAT(message(Lpp(0, 2), 4, 8), HasSubstr("at least 1"));
  EXPECT_THAT(message({{"groups", "2"}}, 4, 8), HasSubstr("`ranks`"));
  EXPECT_THAT(message(Lpp(9, 2), 4, 8), HasSubstr("at most 8 groups"));
  EXPECT_THAT(message(Lpp(2, 5), 4, 8), HasSubstr("at most 4 ranks"));
  EXPECT_THAT(message({{"groups", "2"}, {"rank", "2"}}, 4, 8), HasSubstr("did you mean \"ranks\"?"));
}

// A schedule of two stages on two ranks to break in one place at a time.
Schedule Sound() { return *MakeSchedule("1f1b", {}, 2, 2); }

TEST(ScheduleCheck, SoundSchedule_Passes) { EXPECT_TRUE(CheckSchedule(WithoutTerms(Sound())).ok()); }

// Forwards of stage s on rank s, its backwards on rank S + s, which holds the weights.
Schedule RemoteBackward(bool split) {
  Schedule s = *MakeSchedule("gpipe", {}, 3, 2);
  s.ranks = 6;
  s.split_backward = split;
  s.weights = [](const Job& j) { return 3 + j.stage; };
  s.compute = [](const Job& j) { return j.kind == JobKind::kForward ? j.stage : 3 + j.stage; };
  s.priority = [](const Job& j) { return (j.step * 2 + j.microbatch) * 3 + static_cast<int>(j.kind); };
  return s;
}

TEST(RemoteBackward, BackwardOnAnotherRank_WaitsForTheStagesInput) {
  for (const bool split : {false, true}) {
    const Schedule schedule = RemoteBackward(split);
    ASSERT_TRUE(CheckSchedule(WithoutTerms(schedule)).ok()) << CheckSchedule(WithoutTerms(schedule));
    const Graph graph(WithoutTerms(schedule));
    for (int stage : {0, 1, 2}) {
      std::vector<Edge> edges;
      graph.Predecessors(Job::Compute(5, stage, 1, graph.input_backward()), &edges);
      const auto inputs = std::count_if(edges.begin(), edges.end(), [&](const Edge& e) {
        return e.tensor == TensorKind::kActivation &&
               e.from == Job::Compute(5, stage - 1, 1, JobKind::kForward);
      });
      EXPECT_EQ(inputs, stage > 0 ? 1 : 0);
    }
    SimulationOptions options;
    options.activation = {10};
    const auto run = Simulate(graph, options);
    ASSERT_TRUE(run.ok()) << run.status();
    for (int stage : {0, 1, 2}) {
      // The forward's rank lets go at once, and the backward's has one activation a backward.
      EXPECT_EQ(run->ranks[stage].peak_activations, 1);
      EXPECT_EQ(run->ranks[stage].weight_fetches, 2);
      EXPECT_LE(run->ranks[3 + stage].peak_activations, split ? 2 : 1);
      EXPECT_EQ(run->ranks[3 + stage].activation_receives, stage > 0 ? 2 : 0);
      EXPECT_EQ(run->ranks[3 + stage].weight_fetches, 0);
    }
  }
}

// Two towers of two stages under one head, after a stem that both read: 0 -> 1 -> 2 and 0 -> 3 -> 4 into 5.
RunSchedule TwoTowers(const char* name, int microbatches) {
  RunTerms terms;
  terms.inputs = {{}, {0}, {1}, {0}, {3}, {2, 4}};
  return {*MakeSchedule(name, {}, 6, microbatches), terms};
}

TEST(StagesWithSeveralInputs, Edges_NameConsumersAndInputsByNumber) {
  const RunSchedule schedule = TwoTowers("gpipe", 2);
  ASSERT_TRUE(CheckSchedule(schedule).ok()) << CheckSchedule(schedule);
  const Graph graph(schedule);
  EXPECT_EQ(graph.consumers(0), (std::vector<int>{1, 3}));
  EXPECT_EQ(graph.inputs(5), (std::vector<int>{2, 4}));
  std::vector<Edge> edges;
  StepEdges(graph).AppendSuccessors(graph, Job::Compute(0, 0, 1, JobKind::kForward), &edges);
  ASSERT_EQ(edges.size(), 3u);
  for (int i : {0, 1}) {
    EXPECT_EQ(edges[i].to, Job::Compute(0, 1 + 2 * i, 1, JobKind::kForward));
    EXPECT_EQ(edges[i].tensor, TensorKind::kActivation);
    EXPECT_EQ(edges[i].part, i);
  }
  edges.clear();
  graph.Predecessors(Job::Compute(0, 4, 1, JobKind::kBackward), &edges);
  ASSERT_EQ(edges.size(), 2u);
  EXPECT_EQ(edges[1].from, Job::Compute(0, 5, 1, JobKind::kBackward));
  EXPECT_EQ(edges[1].tensor, TensorKind::kInputGradient);
  EXPECT_EQ(edges[1].part, 1);
}

// A graph of the scheme alone would have lost what the run says.
static_assert(!std::is_constructible_v<Graph, Schedule> && !std::is_constructible_v<RunSchedule, Schedule>);

TEST(RunTerms, GraphForOtherSteps_HasTheSame) {
  RunSchedule schedule = TwoTowers("ddp", 2);
  schedule.terms.takes_norm = true;
  schedule.terms.reduction = ReductionMode::kFast;
  schedule.terms.memory = ActivationMemory{{60, 60}, {10, 10, 10, 10, 10, 10}};
  const Graph graph(schedule, 5), later = graph.ForSteps(9, 3);
  EXPECT_EQ(later.steps(), 9);
  EXPECT_EQ(later.first_step(), 3);
  EXPECT_EQ(later.terms().inputs, schedule.terms.inputs);
  EXPECT_TRUE(later.terms().takes_norm);
  EXPECT_EQ(later.terms().memory->budget, schedule.terms.memory->budget);
  EXPECT_TRUE(later.joint_order().any()) << "sums are joint operations";
  for (const Job& job : {Job::Reduce(3, 0, 0), Job::Update(3, 0, 0)}) {
    std::vector<Operation> words, of_later;
    graph.Operations(job, &words);
    later.Operations(job, &of_later);
    EXPECT_EQ(of_later, words);
  }
}

// The towers run side by side: as long as a chain of four stages.
TEST(StagesWithSeveralInputs, TowersOnTheirOwnRanks_RunBesideEachOther) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const auto run = Simulate(Graph(TwoTowers(name, 8)), {});
    const auto chain = Simulate(Graph(WithoutTerms(*MakeSchedule(name, {}, 4, 8))), {});
    ASSERT_TRUE(run.ok() && chain.ok());
    EXPECT_DOUBLE_EQ(run->makespan, chain->makespan) << name;
    EXPECT_EQ(run->ranks[0].gradient_receives, 16);  // the fork's, from both towers
    EXPECT_EQ(run->ranks[5].activation_receives, 16);
  }
}

TEST(StagesWithSeveralInputs, UnsoundInputs_AreRefusedWithTheStage) {
  const auto problem = [](std::vector<std::vector<int>> inputs) {
    RunSchedule s = WithoutTerms(*MakeSchedule("gpipe", {}, 3, 2));
    s.terms.inputs = std::move(inputs);
    return std::string(CheckSchedule(s).message());
  };
  EXPECT_THAT(problem({{}, {}}), HasSubstr("inputs are given for 2 stages, but there are 3 stages"));
  EXPECT_THAT(problem({{}, {2}, {0, 1}}), HasSubstr("stage 1 reads stage 2"));
  EXPECT_THAT(problem({{}, {}, {1, 0}}), HasSubstr("stage 2 reads stage 0"));
  EXPECT_THAT(problem({{}, {}, {1}}), HasSubstr("no stage reads the output of stage 0"));
  EXPECT_EQ(problem({{}, {}, {0, 1}}), "");
}

TEST(RemoteBackward, HalvesOfABackwardOnTwoRanks_AreRefused) {
  Schedule s = RemoteBackward(true);
  s.compute = [](const Job& j) { return j.kind == JobKind::kBackwardWeight ? j.stage : 3 + j.stage; };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()),
              HasSubstr("is on rank 0 but its backward_input is on rank 3"));
}

// Looped pipelines with two stages a rank: by priorities alone the first stage's forwards would fill the
// memory that the second's need.
TEST(ActivationMemory, TightBudget_EndsAndIsKept) {
  for (const char* family : {"lpp", "breadth_first", "depth_first"}) {
    Parameters parameters = Lpp(1, 2);
    if (std::string(family) != "lpp") parameters = {{"ranks", "2"}};
    RunSchedule s = WithoutTerms(*MakeSchedule(family, parameters, 4, 8));
    SimulationOptions options;
    options.activation = {10, 20, 30, 40};
    options.steps = 3;
    const double before = Simulate(Graph(s), options)->makespan;
    for (const int64_t budget : {60, 75, 130, 1000}) {
      s.terms.memory = ActivationMemory{{budget, budget}, {10, 20, 30, 40}};
      ASSERT_TRUE(CheckSchedule(s).ok()) << family << budget << CheckSchedule(s);
      const auto run = Simulate(Graph(s), options);
      ASSERT_TRUE(run.ok()) << run.status();
      for (const RankStats& r : run->ranks) EXPECT_LE(r.peak_activation_bytes, budget);
      if (budget == 1000) {
        EXPECT_EQ(run->makespan, before) << family;
      }
    }
  }
}

// Whether the budget is one of the options or the run's own, limited forwards are admitted in claim order:
// the last stage's come from two ranks, of which one is slow, and a younger one may be there first.
TEST(ActivationMemory, BudgetOfTheOptions_GivesTheTimelineOfTheRunsOwn) {
  std::mt19937 random(1);
  const auto some = [&](int most) { return 1.0 + static_cast<double>(random() % most); };
  for (int run = 0; run < 50; ++run) {
    const Parameters parameters = {{"ranks", "3"},
                                   {"compute", "s == 1 || s == 2 ? 1 + b % 2 : 0"},
                                   {"limit", absl::StrCat("s == 3 ? ", 1 + run % 2, " : 8")}};
    auto made = MakeSchedule("custom", parameters, 4, 8);
    ASSERT_TRUE(made.ok()) << made.status();
    RunSchedule s = WithoutTerms(*std::move(made));
    SimulationOptions options;
    options.activation = {10, 20, 30, 40};
    options.steps = 2;
    options.record_jobs = true;
    options.network.speeds = {4, 0.25, 1};
    for (const JobKind kind : {JobKind::kForward, JobKind::kBackward})
      options.duration[static_cast<int>(kind)] = {some(9), some(9), some(9), some(9)};
    const int64_t budget = 150 + 50 * static_cast<int64_t>(random() % 12);
    options.memory = static_cast<double>(budget);
    const auto of_options = Simulate(Graph(s), options);
    options.memory = 0;
    s.terms.memory = ActivationMemory{{budget, budget, budget}, {10, 20, 30, 40}};
    const auto own = Simulate(Graph(s), options);
    ASSERT_TRUE(of_options.ok() && own.ok()) << of_options.status() << own.status();
    ASSERT_EQ(of_options->jobs.size(), own->jobs.size());
    for (size_t i = 0; i < own->jobs.size(); ++i) {
      ASSERT_EQ(of_options->jobs[i].job, own->jobs[i].job) << run;
      ASSERT_EQ(of_options->jobs[i].start, own->jobs[i].start) << run << Describe(own->jobs[i].job);
    }
  }
}

// Two ranks deal four micro-batches; each rank has room for one.
RunSchedule DealtMicrobatches(int64_t budget) {
  RunSchedule s = WithoutTerms(*MakeSchedule("ddp", {{"ranks", "2"}}, 1, 4));
  s.terms.memory = ActivationMemory{{budget, budget}, {10}};
  s.terms.memory->gradient_bytes = {30};
  return s;
}

// Rank 1 computes forwards and backwards at once, and then waits: its gradient is not taken before that of
// the slow rank, which comes first.
TEST(ActivationMemory, GradientsThatAreNotTaken_HoldForwardsBack) {
  SimulationOptions options;
  options.network.speeds = {0.1, 1};
  options.record_jobs = true;
  const auto start_of = [&](int64_t budget, int microbatch) {
    const auto run = Simulate(Graph(DealtMicrobatches(budget)), options);
    EXPECT_TRUE(run.ok()) << run.status();
    for (const SimulatedJob& j : run->jobs) {
      if (j.job == Job::Compute(0, 0, microbatch, JobKind::kForward)) return j.start;
    }
    return -1.0;
  };
  EXPECT_EQ(start_of(30, 1), 0);
  EXPECT_EQ(start_of(30, 3), 20) << "when the slow rank's backward has ended";
  EXPECT_EQ(start_of(59, 3), 20);
  EXPECT_EQ(start_of(60, 3), 2) << "there is room for another gradient";
}

TEST(ActivationMemory, GradientLargerThanTheRoom_IsRefusedByName) {
  EXPECT_TRUE(CheckSchedule(DealtMicrobatches(30)).ok());
  EXPECT_THAT(
      std::string(CheckSchedule(DealtMicrobatches(29)).message()),
      HasSubstr("micro-batch 0 alone leaves 30 B there, of them 30 B by the gradient of the weights of "
                "stage 0, until other ranks have taken it; give it more memory"));
  RunSchedule stays = DealtMicrobatches(29);
  stays.terms.memory->gradient_bytes = {};
  EXPECT_TRUE(CheckSchedule(stays).ok()) << "nothing is said of gradients";
}

TEST(ActivationMemory, OneMicrobatchDoesNotFit_IsRefusedWithStageMicrobatchAndBytes) {
  RunSchedule s = WithoutTerms(*MakeSchedule("lpp", Lpp(1, 2), 4, 8));
  s.terms.memory = ActivationMemory{{60, 59}, {10, 20, 30, 40}};
  EXPECT_THAT(
      std::string(CheckSchedule(s).message()),
      HasSubstr("rank 1 has 59 B for activations, and micro-batch 0 alone leaves 60 B there, of them 40 B by "
                "stage 3"));
  s.terms.memory = ActivationMemory{{60}, {10, 20, 30, 40}};
  EXPECT_THAT(std::string(CheckSchedule(s).message()), HasSubstr("for 1 ranks and 4 stages"));
}

TEST(ActivationMemory, FixedOrderThatNeedsMore_IsRefusedAsDeadlock) {
  RunSchedule s = WithoutTerms(*MakeSchedule("zb_h1", {}, 3, 6));
  s.terms.memory = ActivationMemory{{30, 30, 30}, {10, 10, 10}};
  EXPECT_TRUE(CheckSchedule(s).ok()) << CheckSchedule(s);
  s.terms.memory->budget[0] = 20;
  EXPECT_THAT(std::string(CheckSchedule(s).message()),
              HasSubstr("forward (step 0, stage 0, micro-batch 2) leaves 10 B of activations on rank 0"));
}

TEST(ScheduleCheck, RankOutOfRange_NamesJobAndRank) {
  Schedule s = Sound();
  s.compute = [](const Job& j) { return j.stage + 1; };
  const std::string message(CheckSchedule(WithoutTerms(s)).message());
  EXPECT_THAT(message, HasSubstr("forward (step 0, stage 1, micro-batch 0) on rank 2"));
}

TEST(ScheduleCheck, WeightsThatNobodyHolds_AreNamed) {
  Schedule s = Sound();
  s.weights = [](const Job&) { return 7; };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()), HasSubstr("nobody holds the weights"));
}

TEST(ScheduleCheck, EqualPriorities_AreRefused) {
  Schedule s = Sound();
  s.priority = [](const Job&) { return 1; };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()), HasSubstr("same priority"));
}

TEST(ScheduleCheck, PriorityThatGrowsUnevenly_IsRefused) {
  Schedule s = Sound();
  s.priority = [priority = s.priority](const Job& j) { return priority(j) * (j.step + 1); };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()),
              HasSubstr("grow by the same number in every period"));
}

TEST(ScheduleCheck, CycleOfOrderEdges_IsNamed) {
  Schedule s = Sound();
  s.precedes = [](const Job& j) -> std::vector<Job> {
    if (j.stage != 0 || j.kind != JobKind::kForward) return {};
    return {Job::Compute(j.step, 1, j.microbatch, JobKind::kForward)};
  };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()), HasSubstr("cycle"));
}

TEST(ScheduleCheck, LimitOfZero_IsRefused) {
  Schedule s = Sound();
  s.limit = [](Rank, int) -> std::optional<int> { return 0; };
  EXPECT_THAT(std::string(CheckSchedule(WithoutTerms(s)).message()), HasSubstr("can never start"));
}

TEST(ScheduleCheck, LimitThatDeadlocks_IsRefused) {
  // The backward of micro-batch 0 waits for the forward of micro-batch 1, which the limit keeps out.
  Schedule s = *MakeSchedule("gpipe", {}, 1, 2);
  s.limit = [](Rank, int) -> std::optional<int> { return 1; };
  s.precedes = [](const Job& j) -> std::vector<Job> {
    if (j.kind != JobKind::kBackward || j.microbatch != 0) return {};
    return {Job::Compute(j.step, 0, 1, JobKind::kForward)};
  };
  const std::string message(CheckSchedule(WithoutTerms(s)).message());
  EXPECT_THAT(message, HasSubstr("deadlock: rank 0 holds 1 activations and forward (step 0, stage 0, "
                                 "micro-batch 1) is not admitted"));
  EXPECT_THAT(message, HasSubstr("raise the limit"));
}

}  // namespace
}  // namespace weft::schedules_test
