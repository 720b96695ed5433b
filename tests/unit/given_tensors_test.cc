#include "schedules/sync/given_tensors.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/without_terms.h"

namespace weft::given_tensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunSchedule WithinABudget(const std::string& name, const std::map<std::string, std::string>& parameters,
                          int size, const std::string& rule = "sync") {
  Schedule scheme = *MakeSchedule(name, parameters, size, size);
  EXPECT_TRUE(ApplyRule(rule, name, &scheme).ok());
  RunSchedule schedule = WithoutTerms(scheme);
  const auto ranks = static_cast<size_t>(scheme.ranks), stages = static_cast<size_t>(size);
  schedule.terms.memory =
      ActivationMemory{std::vector<int64_t>(ranks, 1000), std::vector<int64_t>(stages, 1)};
  return schedule;
}

Job Backward(int step, int stage, int microbatch) {
  return Job::Compute(step, stage, microbatch, JobKind::kBackward);
}

// Returns the jobs that wait for what the job's rank gives away with this tensor.
std::vector<Job> Behind(const Graph& graph, const Job& job, const Job& reader) {
  std::vector<Edge> edges;
  graph.Predecessors(reader, &edges);
  for (const Edge& e : edges) {
    if (e.from == job && e.tensor != TensorKind::kOrder) return GivenTensors(graph).JobsBehind(graph, e);
  }
  ADD_FAILURE() << Describe(reader) << " reads nothing of " << Describe(job);
  return {};
}

TEST(GivenTensors, VersionThatOtherRanksRead_IsAwaitedByTheUpdateThatMakesTheNext) {
  const Graph graph(WithinABudget("fsdp", {}, 2));
  const Job reader = Job::Compute(3, 0, 1, JobKind::kForward);
  EXPECT_THAT(Behind(graph, Job::Update(2, 0, 0), reader), ElementsAre(Job::Update(3, 0, 0)));
}

TEST(GivenTensors, OldVersions_AreAwaitedByTheUpdateThatWouldHaveOneMore) {
  const Graph graph(WithinABudget("fsdp", {}, 2, "cdp_v1"));
  const Job reader = Job::Compute(3, 0, 1, JobKind::kForward);  // reads the version of the step before
  EXPECT_THAT(Behind(graph, Job::Update(1, 0, 0), reader), ElementsAre(Job::Update(3, 0, 0)));
}

TEST(GivenTensors, WithoutABudget_NothingWaits) {
  RunSchedule schedule = WithinABudget("fsdp", {}, 2);
  schedule.terms.memory.reset();
  EXPECT_THAT(Behind(Graph(schedule), Job::Update(2, 0, 0), Job::Compute(3, 0, 1, JobKind::kForward)),
              IsEmpty());
}

// Each of two groups has every other micro-batch. Steps read the weights of the step before.
TEST(GivenTensors, RunningSum_IsAwaitedByTheNextBackwardOfItsRank) {
  const Graph graph(WithinABudget("lpp", {{"groups", "2"}, {"ranks", "2"}}, 4, "cdp_v1"));
  const Rank rank = graph.RankOf(Backward(5, 0, 0));
  ASSERT_EQ(graph.RankOf(Backward(5, 0, 2)), rank);
  ASSERT_NE(graph.RankOf(Backward(5, 0, 1)), rank);
  EXPECT_THAT(Behind(graph, Backward(5, 0, 0), Backward(5, 0, 1)), ElementsAre(Backward(5, 0, 2)));
  EXPECT_THAT(Behind(graph, Backward(5, 0, 2), Backward(5, 0, 3)),
              ElementsAre(Backward(7, 0, 0), Backward(8, 0, 0)))
      << "the first backwards on weights that contain the sum, of as many steps as may run before one "
         "another";
  EXPECT_EQ(SumsInTurn(graph, 0, rank, 9), 2) << "of two steps";
}

// The rank of a stage has all micro-batches, and each takes the sum of the one before. Another rank holds the
// stage, too.
TEST(GivenTensors, RunningSumsOfOneRank_AreThereTwoAtATime) {
  RunSchedule schedule = WithinABudget("gpipe", {}, 4);
  schedule.scheme.sync = Relayed();
  schedule.scheme.weights = [](const Job& job) {
    return job.microbatch < 3 ? job.stage : (job.stage + 1) % 4;
  };
  const Graph graph(schedule);
  EXPECT_THAT(Behind(graph, Backward(5, 1, 0), Backward(5, 1, 1)), ElementsAre(Backward(5, 1, 2)));
  EXPECT_EQ(SumsInTurn(graph, 1, graph.RankOf(Backward(5, 1, 0)), 9), 2);
}

}  // namespace
}  // namespace weft::given_tensors_test
