#include "schedules/graph/progress.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::progress_test {
namespace {

Graph GraphOf(const std::string& family, int stages, int microbatches,
              const std::map<std::string, std::string>& parameters = {}) {
  auto schedule = MakeSchedule(family, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return Graph(WithoutTerms(*schedule));
}

JobId IdOf(const Graph& graph, const Job& job) { return MakeJobId(job.step, graph.IndexOf(job)); }

TEST(JobId, StepAndIndex_ComeBack) {
  for (const int step : {0, 1, 77, (1 << 30) - 1}) {
    for (const int index : {0, 5, (1 << 30) - 1}) {
      EXPECT_EQ(StepOf(MakeJobId(step, index)), step);
      EXPECT_EQ(IndexOf(MakeJobId(step, index)), index);
    }
  }
}

TEST(JobTable, EveryJob_IsTheGraphs) {
  for (const char* family : {"gpipe", "fsdp", "zb_h1"}) {
    const Graph graph = GraphOf(family, 4, 4);
    const JobTable jobs(graph);
    ASSERT_EQ(jobs.size(), graph.jobs_per_step());
    for (const int step : {0, 3}) {
      for (int i = 0; i < jobs.size(); ++i) {
        const JobId id = MakeJobId(step, i);
        EXPECT_EQ(jobs.JobOf(id), graph.JobAt(step, i));
        EXPECT_EQ(jobs.RankOf(id), graph.RankOf(graph.JobAt(step, i)));
      }
    }
  }
}

// An update of a pipeline leads to every forward of its stage in the next step: more successors than a few.
TEST(StepEdges, ManySuccessors_ComeByTensorSortAndIndex) {
  const Graph graph = GraphOf("1f1b", 2, 40);
  const StepEdges edges(graph);
  std::vector<std::tuple<bool, TensorKind, bool, int>> keys;
  for (const StepEdges::Successor& s : edges.SuccessorsOf(0, graph.IndexOf(Job::Update(0, 1, 0)))) {
    const bool other = HasMicrobatch(graph.JobAt(s.distance, s.index).kind);
    keys.emplace_back(s.tensor == TensorKind::kOrder, s.tensor, other, s.index);
  }
  EXPECT_EQ(keys.size(), 41u) << "forwards and the next update";
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

TEST(StepProgress, GivenTables_AreUsed) {
  const Graph graph = GraphOf("1f1b", 3, 4);
  const auto tables = CheckedTables(graph.run_schedule());
  ASSERT_TRUE(tables.ok()) << tables.status();
  const StepProgress progress(graph, {}, *tables);
  EXPECT_EQ(&progress.edges(), &(*tables)->edges);
  EXPECT_EQ(&progress.jobs(), &(*tables)->jobs);
}

TEST(StepProgress, FirstSteps_WaitForJobsOfTheRunOnly) {
  const Graph graph = GraphOf("gpipe", 2, 2);
  for (const int first : {0, 7}) {
    StepProgress progress(graph, {.first_step = first});
    progress.Open(first + 1);
    const auto missing = [&](int step, int stage, JobKind kind) {
      return progress.MissingOf(IdOf(graph, Job::Compute(step, stage, 0, kind)));
    };
    EXPECT_EQ(missing(first, 0, JobKind::kForward), 0);
    EXPECT_EQ(missing(first, 1, JobKind::kForward), 1) << "the activation";
    EXPECT_EQ(missing(first + 1, 0, JobKind::kForward), 1) << "the update of the step before";
    EXPECT_EQ(missing(first + 1, 1, JobKind::kForward), 2);
  }
}

TEST(StepProgress, Arrive_TheLastInput_IsTold) {
  const Graph graph = GraphOf("gpipe", 2, 1);
  StepProgress progress(graph, {});
  progress.Open(0);
  const JobId backward = IdOf(graph, Job::Compute(0, 0, 0, JobKind::kBackward));
  ASSERT_EQ(progress.MissingOf(backward), 2);
  EXPECT_FALSE(progress.Arrive(backward));
  EXPECT_TRUE(progress.Arrive(backward));
}

// More steps than places: they move, and places are used again.
TEST(StepProgress, ManySteps_BeginAfreshEach) {
  const Graph graph = GraphOf("1f1b", 3, 4);
  StepProgress progress(graph, {});
  progress.Open(5);
  const std::vector<int32_t> steady = progress.At(5).missing;
  for (int step = 1; step <= 5; ++step) EXPECT_EQ(progress.At(step).missing, steady);
  for (int step = 0; step < 100; ++step) {
    StepProgress::Step& last = progress.Open(step + 9);
    EXPECT_EQ(last.missing, steady);
    EXPECT_EQ(*std::max_element(last.state.begin(), last.state.end()), 0);
    EXPECT_EQ(progress.first_step(), step);
    for (int i = 0; i < progress.jobs().size(); ++i) {
      EXPECT_FALSE(progress.FirstHasEnded());
      progress.StateOf(MakeJobId(step, i)) = 1;
      progress.MissingOf(MakeJobId(step, i)) = 0;
      progress.End(step);
    }
    ASSERT_TRUE(progress.FirstHasEnded());
    progress.LeaveFirst();
  }
}

TEST(StepProgress, Followed_CountsTheirJobs) {
  const Graph graph = GraphOf("gpipe", 2, 3);
  StepProgress progress(graph, {.followed = {false, true}});
  EXPECT_EQ(progress.Open(0).remaining, 3 + 3 + 1);
  EXPECT_EQ(StepProgress(graph, {}).Open(0).remaining, graph.jobs_per_step());
}

TEST(StepProgress, ByRank_CountsDownJobsAndThoseOfMicrobatches) {
  const Graph graph = GraphOf("gpipe", 2, 3);
  StepProgress progress(graph, {.by_rank = true});
  progress.Open(0);
  progress.End(0, 1, /*computes=*/true);
  progress.End(0, 1, /*computes=*/false);
  EXPECT_EQ(progress.RemainingOf(0, 1).jobs, 5);
  EXPECT_EQ(progress.RemainingOf(0, 1).compute, 5);
  EXPECT_EQ(progress.RemainingOf(0, 0).jobs, 7);
  EXPECT_EQ(progress.RemainingOf(1, 1).jobs, 7) << "of a step that is not open";
}

// Applies the rule of ranks that receive the initial weights.
TEST(StepProgress, Rule_CountsWhatItSays) {
  const Graph graph = GraphOf("fslpp", 4, 4, {{"groups", "2"}, {"ranks", "2"}});
  const auto rule = [](const Job&, const std::vector<Edge>& before) {
    return static_cast<int>(std::count_if(before.begin(), before.end(), [](const Edge& e) {
      return e.from.step >= 0 || e.tensor == TensorKind::kWeights;
    }));
  };
  StepProgress ruled(graph, {.rule = rule}), plain(graph, {});
  int fetches = 0;
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      const Job job = graph.JobAt(0, i);
      const bool fetch = step == 0 && graph.FetchesWeights(job) && !graph.FetchedBy(job).has_value();
      fetches += fetch;
      EXPECT_EQ(ruled.Open(step).missing[i], plain.Open(step).missing[i] + fetch);
    }
  }
  EXPECT_GT(fetches, 0);
}

TEST(ForEachInOrder, Steps_ComeEachJobAfterItsPredecessors) {
  for (const char* family : {"1f1b", "zb_v", "pipedream_2bw", "ddp"}) {
    const Graph graph = GraphOf(family, 4, 4);
    StepProgress progress(graph, {});
    progress.Open(3);
    std::map<JobId, int> visited;
    int64_t edges = 0;
    const int64_t jobs = ForEachInOrder(
        &progress, [&](JobId id) { visited.emplace(id, static_cast<int>(visited.size())); },
        [&](JobId from, JobId to) {
          ++edges;
          EXPECT_TRUE(visited.contains(from) && !visited.contains(to));
        },
        [](int) { return -1; });
    EXPECT_EQ(jobs, int64_t{4} * graph.jobs_per_step());
    EXPECT_EQ(visited.size(), static_cast<size_t>(jobs));
    EXPECT_GT(edges, jobs / 2);
  }
}

TEST(ForEachInOrder, FurtherWaitInACircle_LeavesOutWhatIsBehindIt) {
  const Graph graph = GraphOf("gpipe", 1, 1);
  StepProgress progress(graph, {});
  progress.Open(0);
  const int forward = graph.IndexOf(Job::Compute(0, 0, 0, JobKind::kForward));
  const int backward = graph.IndexOf(Job::Compute(0, 0, 0, JobKind::kBackward));
  ++progress.At(0).missing[forward];
  const int64_t jobs = ForEachInOrder(
      &progress, [](JobId) {}, [](JobId, JobId) {},
      [&](int index) { return index == backward ? forward : -1; });
  EXPECT_EQ(jobs, 0);
  EXPECT_EQ(progress.At(0).missing[forward], 1);
}

}  // namespace
}  // namespace weft::progress_test
