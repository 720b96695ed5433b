// Tests the load of each worker, derived from a coordinator's answers about workers and runs.
#include "client/runs/worker_load.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::worker_load_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

WorkerInfo Worker(int32_t process, uint64_t run) {
  WorkerInfo worker;
  worker.process = process;
  worker.name = absl::StrCat("w", process);
  worker.host = "a";
  worker.pid = 100 + process;
  worker.state = run == 0 ? "free" : "busy";
  worker.run = run;
  return worker;
}

// Three ranks, of which the second process has the first and the last.
RunInfo RunAt(double seconds) {
  RunInfo run;
  run.id = 5;
  run.name = "text";
  run.steps = 10;
  run.steps_done = 4;
  run.members = {WorkerLabel(Worker(0, 5)), WorkerLabel(Worker(1, 5))};
  run.member_of_rank = {1, 0, 1};
  for (Rank rank = 0; rank < 3; ++rank) {
    RankReport report;
    report.rank = rank;
    report.wall_seconds = seconds;
    report.busy_seconds = {{"forward", 0.25 * seconds}, {"backward", 0.25 * seconds}};
    report.idle_seconds = {{"dependency", 0.5 * seconds}};
    report.live_bytes = {{"weights", 100 + rank}};
    report.peak_bytes = {{"weights", 200}, {"gradients", 50}};
    report.most_bytes = 220;
    run.reports.push_back(report);
  }
  return run;
}

TEST(LoadsOf, WorkersOfARun_HaveTheirRanksAndTheSumsOfThem) {
  const auto loads = LoadsOf({Worker(0, 5), Worker(1, 5), Worker(2, 0)}, {RunAt(8)}, {});
  ASSERT_EQ(loads.size(), 3u);
  EXPECT_THAT(loads[0].ranks, ElementsAre(1));
  EXPECT_THAT(loads[1].ranks, ElementsAre(0, 2));
  EXPECT_THAT(loads[2].ranks, ElementsAre());
  EXPECT_DOUBLE_EQ(loads[1].busy, 0.5);
  EXPECT_THAT(loads[1].idle, UnorderedElementsAre(Pair("dependency", 0.5)));
  EXPECT_EQ(loads[1].live_bytes.at("weights"), 202);
  EXPECT_EQ(loads[1].peak_bytes.at("weights"), 400);
}

TEST(LoadsOf, FormerLook_SharesAreThoseOfTheTimeSince) {
  RunInfo now = RunAt(9);
  for (RankReport& report : now.reports) {
    report.busy_seconds = {{"forward", 2}, {"backward", 2}};  // no job since
    report.idle_seconds["dependency"] = 4.25;
    report.idle_seconds["transfer"] = 0.75;
  }
  const auto loads = LoadsOf({Worker(0, 5)}, {now}, {RunAt(8)});
  EXPECT_DOUBLE_EQ(loads[0].busy, 0);
  EXPECT_THAT(loads[0].idle, UnorderedElementsAre(Pair("dependency", 0.25), Pair("transfer", 0.75)));
}

TEST(LoadsOf, RunThatHasBegunAgainSince_SharesAreThoseOfItsOwnTime) {
  const auto loads = LoadsOf({Worker(0, 5)}, {RunAt(1)}, {RunAt(8)});
  EXPECT_DOUBLE_EQ(loads[0].busy, 0.5);
}

TEST(LoadTable, BusyAndFreeWorkers_EachHaveARow) {
  const std::string table = LoadTable(LoadsOf({Worker(1, 5), Worker(2, 0)}, {RunAt(8)}, {}));
  EXPECT_THAT(table, AllOf(HasSubstr("w1"), HasSubstr("5 text"), HasSubstr("4/10"), HasSubstr("0,2"),
                           HasSubstr("50.0 %"), HasSubstr("440 B"), HasSubstr("w2"), HasSubstr("free")));
}

TEST(LoadTable, CopiesInTheHostsMemory_AreInNoSumOfAllClasses) {
  RunInfo run = RunAt(8);
  run.reports[0].live_bytes["snapshots"] = 9000;
  run.reports[0].peak_bytes["snapshots"] = 9000;
  const std::string table = LoadTable(LoadsOf({Worker(1, 5)}, {run}, {}));
  EXPECT_THAT(table, AllOf(HasSubstr("snapshots/peak"), HasSubstr("8.8 KiB/8.8 KiB"), HasSubstr(" 202 B")));
  EXPECT_THAT(table, Not(HasSubstr("9.0 KiB")));
}

TEST(LoadTable, SilentWorkerWithJobs_SaysForHowLongAndWhichJobs) {
  WorkerInfo worker = Worker(1, 5);
  worker.state = "silent";
  worker.silent_ns = 12'500'000'000;
  worker.jobs = {{0, Job::Compute(17, 2, 3, JobKind::kForward), 1'500'000'000},
                 {2, Job::Update(17, 1, 0), 0},
                 {3, Job::Update(17, 2, 0), 0}};
  const auto loads = LoadsOf({worker}, {RunAt(8)}, {});
  EXPECT_THAT(LoadTable(loads),
              AllOf(HasSubstr("silent 12 s"), HasSubstr("F s2 m3 t17 for 1.5 s, U s1 t17 and 1 more"),
                    HasSubstr("weights/peak"), HasSubstr("202 B/400 B"), HasSubstr("gradients/peak"),
                    HasSubstr("0 B/100 B")));
  const auto json = LoadJson(loads[0]);
  EXPECT_EQ(json["silent_seconds"], 12.5);
  EXPECT_EQ(json["jobs"].size(), 3u);
  EXPECT_EQ(json["jobs"][0]["name"], "F s2 m3 t17");
  EXPECT_EQ(json["jobs"][0]["seconds"], 1.5);
  EXPECT_TRUE(json["jobs"][1]["seconds"].is_null());
}

TEST(LoadJson, FreeWorker_HasNoRun) {
  const auto json = LoadJson(LoadsOf({Worker(2, 0)}, {}, {})[0]);
  EXPECT_TRUE(json["run"].is_null());
  EXPECT_EQ(json["name"], "w2");
}

}  // namespace
}  // namespace weft::worker_load_test
