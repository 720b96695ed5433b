// Schedules written as formulas: equal to the families that the same formulas describe, and refused with the
// formula's name where they are none.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_custom_test {
namespace {

using ::testing::HasSubstr;
using Parameters = std::map<std::string, std::string>;

SimulationResult MustSimulate(const absl::StatusOr<Schedule>& schedule, int steps = 2) {
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  SimulationOptions options;
  options.steps = steps;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  options.record_jobs = true;
  auto run = Simulate(Graph(WithoutTerms(*schedule)), options);
  EXPECT_TRUE(run.ok()) << run.status();
  return *std::move(run);
}

void ExpectSameRun(const absl::StatusOr<Schedule>& a, const absl::StatusOr<Schedule>& b) {
  const auto one = MustSimulate(a), other = MustSimulate(b);
  ASSERT_EQ(one.jobs.size(), other.jobs.size());
  for (size_t i = 0; i < one.jobs.size(); ++i) {
    ASSERT_EQ(one.jobs[i].job, other.jobs[i].job) << Describe(one.jobs[i].job);
    ASSERT_EQ(one.jobs[i].rank, other.jobs[i].rank);
    ASSERT_EQ(one.jobs[i].start, other.jobs[i].start);
  }
  for (size_t r = 0; r < one.ranks.size(); ++r) {
    EXPECT_EQ(one.ranks[r].weight_fetches, other.ranks[r].weight_fetches);
    EXPECT_EQ(one.ranks[r].peak_activations, other.ranks[r].peak_activations);
  }
}

// Returns the fault of the formulas, and the parameter that the payload blames.
std::string Problem(Parameters parameters, std::string* parameter = nullptr) {
  parameters.emplace("workers", "4");
  parameters.emplace("compute", "s % W");
  const auto schedule = MakeSchedule("custom", parameters, 4, 8);
  const absl::Status status = schedule.ok() ? CheckSchedule(WithoutTerms(*schedule)) : schedule.status();
  if (parameter != nullptr)
    *parameter = std::string(status.GetPayload(kParameterPayload).value_or(absl::Cord()));
  return std::string(status.message());
}

TEST(Custom, LoopedPipelinesAsAFormula_RunAsLppJobByJob) {
  for (const auto& [groups, ring, stages, microbatches] :
       {std::tuple{2, 4, 8, 8}, std::tuple{2, 2, 4, 8}, std::tuple{3, 2, 6, 7}, std::tuple{8, 1, 3, 8}}) {
    const std::string h = "(R*b) % W + s % R";
    const Parameters formulas = {{"workers", absl::StrCat(groups * ring)},
                                 {"compute", h},
                                 {"priority", "((k != forward)*B + b)*S + s"},
                                 {"R", absl::StrCat(ring)}};
    const Parameters named = {{"groups", absl::StrCat(groups)}, {"ranks", absl::StrCat(ring)}};
    ExpectSameRun(MakeSchedule("custom", formulas, stages, microbatches),
                  MakeSchedule("lpp", named, stages, microbatches));
    Parameters owned = formulas;
    owned["weights"] = "(R*s) % W + s % R";
    owned["keep_fetched"] = "true";
    ExpectSameRun(MakeSchedule("custom", owned, stages, microbatches),
                  MakeSchedule("fslpp", named, stages, microbatches));
  }
}

TEST(Custom, OneForwardOneBackwardAsALimit_RunsAs1f1b) {
  ExpectSameRun(MakeSchedule("custom", {{"workers", "4"}, {"compute", "s"}, {"limit", "S - s"}}, 4, 9),
                MakeSchedule("1f1b", {}, 4, 9));
}

TEST(Custom, DataParallelWithOwnedWeights_RunsAsFsdp) {
  ExpectSameRun(
      MakeSchedule(
          "custom",
          {{"workers", "4"}, {"compute", "b"}, {"weights", "s % W"}, {"priority", "(k != forward)*S*B + s"}},
          3, 4),
      MakeSchedule("fsdp", {}, 3, 4));
}

TEST(Custom, StepInAFormula_RepeatsAfterItsPeriod) {
  const auto schedule = MakeSchedule(
      "custom", {{"workers", "4"}, {"compute", "(s + t) % W"}, {"weights", "s"}, {"period", "4"}}, 4, 8);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  for (int t = 0; t < 12; ++t) {
    for (int s = 0; s < 4; ++s) {
      EXPECT_EQ(schedule->compute(Job::Compute(t, s, 3, JobKind::kForward)), (s + t) % 4);
    }
  }
  const auto run = MustSimulate(schedule, 8);
  for (const SimulatedJob& j : run.jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    EXPECT_EQ(j.rank, (j.job.stage + j.job.step) % 4);
  }
  // Every stage is at home in two of the eight steps; elsewhere each job fetches.
  for (const RankStats& r : run.ranks) EXPECT_EQ(r.weight_fetches, 6 * 8 * 2);
}

// If an update's reader is on another rank in some steps only, the edges still match in every step.
TEST(Custom, StepInAFormula_GraphIsConsistent) {
  for (const char* weights : {"s", "(s + b + t) % W", "(s + t) % W", "(s + 2*t) % W"}) {
    const Graph graph(WithoutTerms(*MakeSchedule(
        "custom", {{"workers", "3"}, {"compute", "(s + b + t) % W"}, {"weights", weights}, {"period", "3"}},
        3, 4)));
    const StepEdges successors(graph);
    for (int step = 0; step < 7; ++step) {
      for (int i = 0; i < graph.jobs_per_step(); ++i) {
        const Job job = graph.JobAt(step, i);
        std::vector<Edge> before;
        graph.Predecessors(job, &before);
        for (const Edge& e : before) {
          if (e.from.step < 0) continue;
          std::vector<Edge> after;
          successors.AppendSuccessors(graph, e.from, &after);
          const auto same = [&](const Edge& o) {
            return o.to == job && o.tensor == e.tensor && o.part == e.part && o.version == e.version;
          };
          EXPECT_EQ(std::count_if(after.begin(), after.end(), same), 1)
              << Describe(e.from) << " to " << Describe(job);
        }
      }
    }
  }
}

// Every rank that holds a stage's weights in some step keeps a copy, and updates it in every step.
TEST(Custom, WeightsThatMoveWithTheJobs_AreReplicasAndNeverFetched) {
  const auto schedule =
      MakeSchedule("custom", {{"workers", "4"}, {"compute", "(b + t) % W"}, {"period", "4"}}, 2, 4);
  const auto run = MustSimulate(schedule, 8);
  const Graph graph(WithoutTerms(*schedule));
  EXPECT_EQ(graph.members(0).size(), 4u);
  for (const RankStats& r : run.ranks) EXPECT_EQ(r.weight_fetches, 0);
}

TEST(Custom, SplitBackward_RunsItsHalves) {
  const auto run = MustSimulate(
      MakeSchedule("custom", {{"workers", "2"}, {"compute", "s"}, {"split_backward", "true"}}, 2, 4), 1);
  int halves = 0;
  for (const SimulatedJob& j : run.jobs) halves += j.job.kind == JobKind::kBackwardWeight;
  EXPECT_EQ(halves, 2 * 4);
}

TEST(Custom, Staleness_ReadsOlderWeights) {
  const auto schedule =
      MakeSchedule("custom", {{"workers", "4"}, {"compute", "s"}, {"staleness", "S - 1 - s"}}, 4, 2);
  const auto run = MustSimulate(schedule, 6);
  for (const SimulatedJob& j : run.jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    EXPECT_EQ(j.weights_version, std::max(0, j.job.step - (3 - j.job.stage)));
  }
}

TEST(Custom, WrongFormula_IsNamedWithItsColumnAndJob) {
  std::string parameter;
  EXPECT_THAT(Problem({{"compute", "s % Q"}}, &parameter),
              HasSubstr("custom: compute: column 5: there is no \"Q\""));
  EXPECT_EQ(parameter, "compute");
  EXPECT_THAT(Problem({{"weights", "s +"}}, &parameter), HasSubstr("custom: weights: column"));
  EXPECT_EQ(parameter, "weights");
  EXPECT_THAT(Problem({{"compute", "s + 2"}}, &parameter),
              HasSubstr("compute: is 4 for forward (step 0, stage 2, micro-batch 0); ranks are 0 to 3"));
  EXPECT_EQ(parameter, "compute");
  EXPECT_THAT(Problem({{"compute", "0 - s"}}), HasSubstr("is -1 for forward (step 0, stage 1"));
  EXPECT_THAT(Problem({{"compute", "s % (b - 5)"}}), HasSubstr("from 0 up"));
  EXPECT_THAT(Problem({{"compute", "s / b"}}),
              HasSubstr("division by zero; for forward (step 0, stage 0, micro-batch 0)"));
  EXPECT_THAT(Problem({{"compute", "(s + t) % W"}}), HasSubstr("period: 4"));
  EXPECT_THAT(Problem({{"priority", "b"}}), HasSubstr("same priority"));
  EXPECT_THAT(Problem({{"priority", "t*100 + b"}}, &parameter), HasSubstr("leave t out"));
  EXPECT_EQ(parameter, "priority");
  EXPECT_THAT(Problem({{"priority", "b*100000000000"}}), HasSubstr("keep it within"));
  EXPECT_THAT(Problem({{"staleness", "s - 1"}}), HasSubstr("is -1 for stage 0, micro-batch 0"));
  EXPECT_THAT(Problem({{"staleness", "k"}}), HasSubstr("no \"k\""));
  EXPECT_THAT(Problem({{"limit", "s"}}), HasSubstr("limit of stage 0 on rank 0 is 0"));
}

TEST(Custom, ConstantThatNoFormulaUses_IsAnErrorWithTheParameterThatItMayBe) {
  std::string parameter;
  EXPECT_THAT(Problem({{"limti", "1"}}, &parameter),
              HasSubstr("custom: limti: is used by no formula; did you mean \"limit\"?"));
  EXPECT_EQ(parameter, "limti");
  EXPECT_THAT(Problem({{"stalness", "1"}}), HasSubstr("did you mean \"staleness\"?"));
  EXPECT_THAT(Problem({{"R", "2"}}), ::testing::EndsWith("R: is used by no formula"));
  EXPECT_EQ(Problem({{"R", "2"}, {"compute", "s % W + 0*R"}}), "");
  // A name is not used by a longer one that has it in itself.
  EXPECT_THAT(Problem({{"R", "2"}, {"R2", "3"}, {"compute", "s % W + 0*R2"}}), HasSubstr("R: is used by no"));
}

TEST(Custom, TwoJobsOfOnePriority_ItIsTheNumberOfTheUsersFormula) {
  EXPECT_THAT(Problem({{"priority", "-s - 100"}}), HasSubstr("have the same priority -100 on rank 0"));
}

TEST(Custom, MisspeltKind_GetsASuggestion) {
  EXPECT_THAT(Problem({{"priority", "(k == backward_wieght)*B*S + b*S + s"}}),
              HasSubstr("there is no \"backward_wieght\"; did you mean \"backward_weight\"?"));
}

TEST(Custom, Ranks_AreAlsoCalledWorkersAsTheyWereBefore) {
  const auto ranks = MakeSchedule("custom", {{"ranks", "4"}, {"compute", "s"}}, 4, 8);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ExpectSameRun(ranks, MakeSchedule("custom", {{"workers", "4"}, {"compute", "s"}}, 4, 8));
  EXPECT_THAT(Problem({{"ranks", "4"}}), HasSubstr("`ranks`, which is given too"));
}

TEST(Custom, WrongParameter_IsNamedWithTheNearest) {
  std::string parameter;
  EXPECT_THAT(Problem({{"weigths", "s % W"}}, &parameter), HasSubstr("did you mean \"weights\"?"));
  EXPECT_EQ(parameter, "weigths");
  EXPECT_THAT(Problem({{"b", "3"}}, &parameter), HasSubstr("a word of the formulas"));
  EXPECT_EQ(parameter, "b");
  EXPECT_THAT(Problem({{"forward", "3"}}), HasSubstr("a word of the formulas"));
  EXPECT_THAT(Problem({{"2x", "3"}}), HasSubstr("begins with a letter"));
  EXPECT_THAT(Problem({{"R", "99999999999999999"}}), HasSubstr("2^53"));
  EXPECT_THAT(Problem({{"workers", "0"}}, &parameter), HasSubstr("'0' is not a whole number"));
  EXPECT_EQ(parameter, "workers");
  EXPECT_THAT(Problem({{"split_backward", "yes"}}), HasSubstr("true or false"));
  EXPECT_THAT(std::string(MakeSchedule("custom", {{"workers", "4"}}, 4, 8).status().message()),
              HasSubstr("needs `compute`"));
  EXPECT_THAT(std::string(MakeSchedule("custom", {{"compute", "s"}}, 4, 8).status().message()),
              HasSubstr("needs `ranks`"));
  EXPECT_THAT(
      std::string(MakeSchedule("custom", {{"workers", "1"}, {"period", "5"}, {"compute", "0"}}, 1000, 1000)
                      .status()
                      .message()),
      HasSubstr("are more than"));
}

// ---- protocols and rules

using Link = std::tuple<Job, Job, TensorKind, int, int>;

std::vector<Link> LinksOf(const Graph& graph) {
  std::vector<Link> links;
  Edges edges;
  for (int step = 0; step < graph.steps(); ++step) {
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      edges.clear();
      graph.Predecessors(graph.JobAt(step, i), &edges);
      for (const Edge& e : edges) links.push_back({e.from, e.to, e.tensor, e.part, e.version});
    }
  }
  std::sort(links.begin(), links.end());
  return links;
}

TEST(Custom, ProtocolAndRule_AreThoseOfTheFamilies) {
  struct Case {
    std::string sync, rule, family;
    std::map<std::string, std::string> parameters;
  };
  for (const Case& c : std::vector<Case>{{"slices", "sync", "ddp", {}},
                                         {"slices", "cdp_v1", "ddp", {}},
                                         {"relay", "cdp_v2", "ddp", {}},
                                         {"width", "sync", "fsdp", {{"shard", "width"}}},
                                         {"migrating", "cdp_v2", "fsdp", {{"residency", "migrating"}}}}) {
    SCOPED_TRACE(c.sync + " " + c.rule);
    Schedule custom = *MakeSchedule("custom", {{"ranks", "4"}, {"compute", "b"}, {"sync", c.sync}}, 4, 4);
    Schedule family = *MakeSchedule(c.family, c.parameters, 4, 4);
    ASSERT_TRUE(ApplyRule(c.rule, "custom", &custom).ok());
    ASSERT_TRUE(ApplyRule(c.rule, c.family, &family).ok());
    EXPECT_TRUE(CheckSchedule(WithoutTerms(custom)).ok()) << CheckSchedule(WithoutTerms(custom));
    EXPECT_EQ(LinksOf(Graph(WithoutTerms(custom), 4)), LinksOf(Graph(WithoutTerms(family), 4)));
  }
}

TEST(Custom, RelayWithoutARule_PassesSumsOnAndRuns) {
  const auto schedule =
      MakeSchedule("custom", {{"ranks", "3"}, {"compute", "b % W"}, {"sync", "relay"}}, 2, 6);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  ASSERT_TRUE(CheckSchedule(WithoutTerms(*schedule)).ok()) << CheckSchedule(WithoutTerms(*schedule));
  const Graph graph(WithoutTerms(*schedule));
  EXPECT_TRUE(graph.protocol(0).passes_sums());
  EXPECT_FALSE(graph.protocol(0).has_reduce());
  EXPECT_TRUE(Simulate(graph, {}).ok());
}

TEST(Custom, ProtocolsThatDoNotFit_AreRefusedWithTheReason) {
  const auto make = [](std::map<std::string, std::string> more) {
    more.insert({{"ranks", "3"}, {"compute", "b"}});
    return MakeSchedule("custom", more, 3, 3);
  };
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(make({{"sync", "relais"}}).status()), testing::HasSubstr("did you mean \"relay\"?"));
  EXPECT_THAT(message(make({{"sync", "migrating"}, {"weights", "s"}}).status()),
              testing::HasSubstr("says nothing where the state of a stage migrates"));
  Schedule migrating = *make({{"sync", "migrating"}});
  EXPECT_THAT(message(ApplyRule("sync", "custom", &migrating)), testing::HasSubstr("add rule=cdp_v1"));
  Schedule stale = *make({{"staleness", "1"}});
  EXPECT_THAT(message(ApplyRule("cdp_v2", "custom", &stale)), testing::HasSubstr("leave `staleness` out"));
  Schedule wide = *make({{"sync", "width"}});
  EXPECT_THAT(message(ApplyRule("cdp_v2", "custom", &wide)), testing::HasSubstr("cut by width"));
}

}  // namespace
}  // namespace weft::schedule_custom_test
