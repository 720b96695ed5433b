// The pages on which a coordinator shows its runs.
#include "coordinator/record/status_page.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::status_page_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHostile[] = "</td><script>alert(1)</script>\"'&";

RunInfo Running(uint64_t id) {
  RunInfo run;
  run.id = id;
  run.name = "text";
  run.schedule = "1f1b";
  run.state = RunState::kRunning;
  run.steps = 100;
  run.steps_done = 7;
  run.ranks = run.processes = 2;
  return run;
}

TEST(StatusPage, NoRunsAndNoWorkers_SaysSo) {
  EXPECT_THAT(StatusPage({}, {}, 0),
              AllOf(HasSubstr("No run was submitted yet."), HasSubstr("No worker is connected.")));
}

TEST(StatusPage, TextsFromOutside_AreEscaped) {
  RunInfo run = Running(1);
  run.name = run.schedule = run.output = run.restart_reason = kHostile;
  run.restarts = 1;
  run.members = {kHostile};
  run.state = RunState::kWaiting;
  run.reason = kHostile;
  WorkerInfo worker;
  worker.name = worker.host = worker.device = worker.state = kHostile;
  RunRecords::Look look{run, {}, {}, 1};
  look.run.reports.resize(1);
  look.run.reports[0].wall_seconds = 1;
  look.run.reports[0].idle_seconds = {{kHostile, 1}};
  look.run.reports[0].peak_bytes = {{kHostile, 1}};
  look.history.OnReport(look.run.reports);
  for (const std::string& page : {StatusPage({run}, {worker}, 0), RunPage(run, look, 0),
                                  RunPage(run, std::nullopt, 0), ProblemPage(kHostile)}) {
    EXPECT_THAT(page,
                AllOf(HasSubstr("&lt;script&gt;"), Not(HasSubstr("<script>")), Not(HasSubstr("</td><s"))));
  }
}

TEST(StatusPage, ManyEndedRuns_LeaveOutTheOldestAndNoneThatGoesOn) {
  std::vector<RunInfo> runs;
  for (uint64_t id = 1; id <= 1000; ++id) {
    runs.push_back(Running(id));
    if (id != 2) runs.back().state = RunState::kFinished;
  }
  EXPECT_THAT(StatusPage(runs, {}, 0),
              AllOf(HasSubstr("\"/runs/2\""), HasSubstr("\"/runs/1000\""), Not(HasSubstr("\"/runs/500\"")),
                    HasSubstr("and 800 older runs that have ended")));
}

TEST(RunPage, RunThatHasStarted_NamesTheCommandForItsTrace) {
  RunInfo run = Running(3);
  EXPECT_THAT(RunPage(run, std::nullopt, 0), Not(HasSubstr("weft trace")));
  run.started_ns = 1;
  EXPECT_THAT(RunPage(run, std::nullopt, 0),
              HasSubstr("<code id=\"trace\">weft trace 3 --perfetto run3.json</code>"));
}

TEST(RunPage, RunThatGoesOn_HasItsPictures) {
  const RunInfo run = Running(3);
  RunRecords::Look look{run, {}, {}, 2};
  for (int step = 0; step < 7; ++step) look.history.OnLoss(step, 1.0 / (1 + step));
  for (int second = 1; second < 4; ++second) {
    RankReport report;
    report.wall_seconds = second;
    report.live_bytes = {{"weights", 1 << 20}, {"activations", second << 10}};
    look.history.OnReport({report});
  }
  look.jobs.push_back({Job{6, 0, 0, 0, JobKind::kForward}, 0, 0, 0.5});
  EXPECT_THAT(RunPage(run, look, 0),
              AllOf(HasSubstr("Run 3: text"), HasSubstr("step 7 of 100"), HasSubstr(">Loss<"),
                    HasSubstr(">The last steps<"), HasSubstr("weights 1.0 MiB")));
}

TEST(RunPage, RunThatHasEnded_NamesItsFolder) {
  RunInfo run = Running(3);
  run.state = RunState::kFinished;
  run.output = "/runs/text";
  EXPECT_THAT(RunPage(run, std::nullopt, 0), HasSubstr("Its pictures and figures are in /runs/text."));
}

TEST(RunPage, RunThatHasJustEnded_ShowsItsPicturesAndLastFigures) {
  RunInfo run = Running(3);
  run.state = RunState::kFinished;
  run.output = "/runs/text";
  run.reports.resize(1);
  run.reports[0].idle_seconds = {{"dependency", 1}};
  RunRecords::Look look{Running(3), {}, {}, 1};
  look.jobs.push_back({Job{6, 0, 0, 0, JobKind::kForward}, 0, 0, 0.5});
  EXPECT_THAT(RunPage(run, look, 0),
              AllOf(HasSubstr(">The last steps<"), HasSubstr("Its pictures and figures are in /runs/text."),
                    HasSubstr("dependency")));
}

}  // namespace
}  // namespace weft::status_page_test
