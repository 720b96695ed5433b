#include "coordinator/record/train_results.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/run_recorder.h"
#include "coordinator/record/run_view.h"
#include "coordinator/record/step_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_memory.h"
#include "schedules/families/families.h"
#include "tests/test_folder.h"
#include "tests/unit/without_terms.h"

namespace weft::train_results_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

Completion Done(int step, int stage, int microbatch, JobKind kind, int64_t start_ms, int64_t end_ms) {
  Completion done;
  done.job = Job::Compute(step, stage, microbatch, kind);
  done.start_ns = start_ms * kMs;
  done.end_ns = end_ms * kMs;
  return done;
}

TEST(RunRecorder_Steps, EndsOfSteps_SecondsSinceTheOneBefore) {
  int wakes = 0;
  RunRecorder recorder(1, 100, [&] { ++wakes; });
  recorder.OnJobs({1, 0, 0, {Done(0, 0, 0, JobKind::kForward, 1000, 1010)}});
  recorder.OnStep({1, 0, 5.0, true, 1100 * kMs});
  recorder.OnStep({1, 1, 4.0, true, 1250 * kMs});
  const std::vector<StepRecord> steps = recorder.TakeSteps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_DOUBLE_EQ(steps[0].seconds, 0.1);
  EXPECT_DOUBLE_EQ(steps[1].seconds, 0.15);
  EXPECT_DOUBLE_EQ(steps[1].end_seconds, 0.25);
  EXPECT_DOUBLE_EQ(steps[1].loss, 4.0);
  EXPECT_TRUE(recorder.TakeSteps().empty());
  EXPECT_EQ(wakes, 2);
}

TEST(RunRecorder_Jobs, MoreThanTheBound_OldestStepsDroppedWhole) {
  RunRecorder recorder(1, 5, [] {});
  for (int step = 0; step < 4; ++step) {
    recorder.OnJobs({1,
                     0,
                     0,
                     {Done(step, 0, 0, JobKind::kForward, 10 * step, 10 * step + 2),
                      Done(step, 0, 0, JobKind::kBackward, 10 * step + 2, 10 * step + 6)}});
  }
  const std::vector<DrawnJob> jobs = recorder.LastJobs();
  ASSERT_EQ(jobs.size(), 4u);  // of 5 kept, one is of a step that is no longer whole
  EXPECT_EQ(jobs[0].job.step, 2);
  EXPECT_DOUBLE_EQ(jobs[0].start, 0.02);
  EXPECT_DOUBLE_EQ(jobs[3].end, 0.036);
}

TEST(RunRecorder_Durations, OfEachKindAndStage_MeanOfTheLastWithoutTheExtremes) {
  RunRecorder recorder(2, 10, [] {});
  for (const int ms : {5, 1, 100}) recorder.OnJobs({1, 0, 0, {Done(0, 1, 0, JobKind::kForward, 0, ms)}});
  auto typical = recorder.TypicalDurations();
  EXPECT_NEAR(typical[0][1], 0.005, 1e-9);
  EXPECT_EQ(typical[0][0], 0);
  EXPECT_EQ(typical[static_cast<int>(JobKind::kUpdate)].size(), 2u);
  for (int i = 0; i < 1000; ++i) recorder.OnJobs({1, 0, 0, {Done(0, 1, 0, JobKind::kForward, 0, 7)}});
  EXPECT_NEAR(recorder.TypicalDurations()[0][1], 0.007, 1e-8);
  for (int i = 0; i < 512; ++i)
    recorder.OnJobs({1, 0, 0, {Done(0, 1, 0, JobKind::kForward, 0, i % 4 == 0 ? 9 : 7)}});
  EXPECT_NEAR(recorder.TypicalDurations()[0][1], 0.00745, 0.0001) << "between median and mean";
}

TEST(RunRecorder_Reports, LatestOfEachRank_Kept) {
  RunRecorder recorder(1, 10, [] {});
  RankReport first, second;
  first.rank = 1;
  first.wall_seconds = 1;
  second.rank = 0;
  second.wall_seconds = 5;
  recorder.OnReport({1, {first, second}});
  first.wall_seconds = 2;
  recorder.OnReport({1, {first}});
  const RunInfo run = recorder.run();
  ASSERT_EQ(run.reports.size(), 2u);
  EXPECT_DOUBLE_EQ(run.reports[0].wall_seconds, 5);
  EXPECT_DOUBLE_EQ(run.reports[1].wall_seconds, 2);
}

TEST(RunRecorder_Completeness, RunThatFails_WhenItsLastSpansAreThere) {
  int wakes = 0;
  RunRecorder recorder(1, 10, [&] { ++wakes; });
  RunInfo run;
  run.state = RunState::kRunning;
  recorder.OnRun(run);
  EXPECT_FALSE(recorder.is_complete());
  run.state = RunState::kFailed;
  recorder.OnRun(run);
  EXPECT_FALSE(recorder.is_complete());
  const int before = wakes;
  recorder.OnSpansComplete();
  EXPECT_TRUE(recorder.is_complete());
  EXPECT_EQ(wakes, before + 1);
}

TEST(RunRecorder_Completeness, RunThatFinishes_AtOnce) {
  RunRecorder recorder(1, 10, [] {});
  RunInfo run;
  run.state = RunState::kFinished;
  recorder.OnRun(run);
  EXPECT_TRUE(recorder.is_complete());
}

TEST(ResultsSoFar_RunThatGoesOn, HasTheStepsThatHaveEndedAndWhatWasTold) {
  RunRecorder recorder(2, 100, [] {});
  const Graph graph(WithoutTerms(*MakeSchedule("gpipe", {}, 2, 2)));
  const auto make = [&](int step, int jobs) {
    for (int i = 0; i < jobs; ++i) {
      Completion done;
      done.job = graph.JobAt(step, i);
      done.start_ns = (100 * step + i) * kMs;
      done.end_ns = done.start_ns + kMs;
      recorder.OnJobs({1, graph.RankOf(done.job), 0, {done}});
    }
  };
  make(0, graph.jobs_per_step());
  make(1, 3);
  recorder.OnSpans({1, {{0, {{IdleCause::kDependency, 2 * kMs, 4 * kMs}}, {}}}});
  const TrainResults results = ResultsSoFar(RunSpec(), graph.run_schedule(), recorder);
  EXPECT_EQ(results.jobs.size(), static_cast<size_t>(graph.jobs_per_step()));
  for (const DrawnJob& j : results.jobs) EXPECT_EQ(j.job.step, 0);
  ASSERT_EQ(results.idle.size(), 1u);
  EXPECT_EQ(results.idle[0].cause, IdleCause::kDependency);
}

TEST(Percentile_NearestRank, KnownValues) {
  EXPECT_DOUBLE_EQ(Percentile({}, 0.5), 0);
  EXPECT_DOUBLE_EQ(Percentile({3}, 0.99), 3);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.99), 4);
}

TEST(PredictStep_1f1b, EqualStages_ClosedForm) {
  // (B + S - 1) * (forward + backward), and one update behind the last backward.
  std::array<std::vector<double>, kJobKinds> durations;
  for (auto& of_kind : durations) of_kind.assign(4, 0.0);
  durations[static_cast<int>(JobKind::kForward)].assign(4, 0.1);
  durations[static_cast<int>(JobKind::kBackward)].assign(4, 0.2);
  durations[static_cast<int>(JobKind::kUpdate)].assign(4, 0.05);
  const RunSchedule schedule = WithoutTerms(*MakeSchedule("1f1b", {}, 4, 8));
  const auto predicted = PredictionFrom(schedule, 1, 1, CostsOfRun(RunSpec(), schedule, durations));
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  EXPECT_NEAR(predicted->step_seconds, 11 * 0.3 + 0.05, 1e-9);
  EXPECT_GT(predicted->idle.at("limit"), 0);
  EXPECT_FALSE(predicted->idle.contains("no_work"));
}

TEST(PredictStep_WithNetwork, MeasuredTimesAreThoseAtItsSpeeds) {
  RunSpec run;
  run.model = GptSpec();
  run.layers_of_stage = {5, 5};
  run.train.batch = 8;
  run.train.microbatches = 4;
  run.network.emplace();
  run.network->network.speeds = {1, 0.5};
  std::array<std::vector<double>, kJobKinds> durations;
  for (auto& of_kind : durations) of_kind.assign(2, 0.0);
  durations[static_cast<int>(JobKind::kForward)] = {0.1, 0.2};
  durations[static_cast<int>(JobKind::kBackward)] = {0.2, 0.4};
  const auto step = [&](const RunSchedule& schedule) {
    const auto predicted = PredictionFrom(schedule, 1, 1, CostsOfRun(run, schedule, durations));
    EXPECT_TRUE(predicted.ok()) << predicted.status();
    return predicted->step_seconds;
  };
  const RunSchedule pipeline = WithoutTerms(*MakeSchedule("gpipe", {}, 2, 4));
  // A stage took its time on its own rank: 4 passes of the slow rank, and one of the other on either side.
  EXPECT_NEAR(step(pipeline), 0.3 + 4 * 0.6, 1e-9);
  // Each stage was measured on both ranks, so it takes 2/3 of the mean on one and 4/3 on the other.
  EXPECT_NEAR(step(WithoutTerms(*MakeSchedule("ddp", {{"ranks", "2"}}, 2, 4))), 2 * 0.9 * 4 / 3, 1e-9);
  run.network->bandwidth = 1e6;
  const double bytes = static_cast<double>(CountStage(run, 0).output);
  ASSERT_GT(bytes, 0);
  EXPECT_NEAR(step(pipeline), 0.3 + 4 * 0.6 + 2 * bytes / 1e6, 1e-9) << "one transfer to fill, one to drain";
}

TEST(PlannedJobs, BesideTheLastMeasuredSteps_HaveTheirNumbersAndTheirBegin) {
  const auto job = [](int step, double start) {
    return DrawnJob{Job::Compute(step, 0, 0, JobKind::kForward), 0, start, start + 1};
  };
  const std::vector<DrawnJob> beside =
      PlannedBeside({job(5, 10), job(6, 12), job(7, 14)}, {job(8, 101), job(9, 104)});
  ASSERT_EQ(beside.size(), 2u) << "no step without measured jobs";
  EXPECT_EQ(beside[0].job.step, 8);
  EXPECT_DOUBLE_EQ(beside[0].start, 101);
  EXPECT_EQ(beside[1].job.step, 9);
  EXPECT_DOUBLE_EQ(beside[1].start, 103) << "two seconds behind, as planned";
  EXPECT_TRUE(PlannedBeside({}, {job(8, 101)}).empty());
}

TrainResults TwoRanks() {
  TrainResults results;
  results.spec.name = "a";
  results.spec.model = GptSpec();
  results.spec.data.source = TextData{"/x"};
  results.spec.train.batch = 8;
  results.spec.train.optimizer = SgdSpec();
  results.spec.layers_of_stage = {5, 5};
  results.spec.schedule.name = "1f1b";
  results.ranks = results.processes = 2;
  results.step_seconds = {0.5, 0.25, 0.25};
  results.first_loss = 3;
  results.final_loss = 2;
  results.seconds = 1;
  results.predicted.step_seconds = 0.2;
  for (int rank = 0; rank < 2; ++rank) {
    RankReport report;
    report.rank = rank;
    report.wall_seconds = 1;
    report.busy_seconds = {{"forward", 0.25}, {"backward", 0.5}};
    report.idle_seconds = {{"dependency", 0.25}, {"memory", 0}};
    report.peak_bytes = {{"weights", 2048}, {"activations", 4096}};
    report.bytes_sent = {{"activation", 100}, {"input_gradient", 0}};
    results.reports.push_back(report);
  }
  results.jobs = {{Job::Compute(2, 0, 0, JobKind::kForward), 0, 0.75, 1.0}};
  return results;
}

TEST(Summary_Json, FieldsOfTheContract) {
  const auto json = SummaryJson(TwoRanks());
  EXPECT_EQ(json["final_loss"], 2);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_DOUBLE_EQ(json["step_seconds"]["p50"], 0.25);
  EXPECT_DOUBLE_EQ(json["step_seconds"]["p99"], 0.5);
  EXPECT_DOUBLE_EQ(json["samples_per_second"], 24);
  EXPECT_DOUBLE_EQ(json["predicted_step_seconds"], 0.2);
  EXPECT_FALSE(json.contains("planned_step_seconds"));
  EXPECT_EQ(json["bytes_sent"]["activation"], 200);
  EXPECT_EQ(json["peak_bytes"][1]["weights"], 2048);
  EXPECT_DOUBLE_EQ(json["idle_seconds"][0]["dependency"], 0.25);
}

TEST(Summary_Json, SomeOfTheSteps_SaysWhereTheyBegin) {
  TrainResults results = TwoRanks();
  EXPECT_EQ(SummaryJson(results)["first_step"], 0);
  EXPECT_EQ(SummaryText(results, "out/a").find("--resume"), std::string::npos);
  results.spec.train.steps = 20;
  results.spec.resume = {"/c", 7};
  results.spec.until = 9;
  EXPECT_EQ(SummaryJson(results)["first_step"], 7);
  const std::string text = SummaryText(results, "out/a", {}, "weft train a.yaml --resume out/a");
  EXPECT_NE(text.find("(7 to 8 of 20)"), std::string::npos) << text;
  EXPECT_NE(text.find("\n`weft train a.yaml --resume out/a` goes on with step 9\n"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("checkpoint-0"), std::string::npos) << text;
}

TEST(Summary_Text, ColumnsOnlyForWhatHappened) {
  const std::string text = SummaryText(TwoRanks(), "out/a");
  EXPECT_THAT(text,
              AllOf(HasSubstr("loss         3.0000 -> 2.0000"), HasSubstr("25.0 %"), HasSubstr("75.0 %"),
                    HasSubstr("2.0 KiB"), HasSubstr("sent         activation 200 B"),
                    HasSubstr("out/a/timeline.svg"), HasSubstr("rank 1")));
  EXPECT_THAT(text, Not(HasSubstr("memory")));
  EXPECT_THAT(text, Not(HasSubstr("input_gradient")));
}

// A rank that still prepares has told no bytes: that is not zero.
TEST(RankTable_Bytes, NotTold_AreADash) {
  std::vector<RankReport> reports(2);
  reports[1].rank = 1;
  reports[1].peak_bytes = {{"weights", 2048}};
  EXPECT_THAT(RankTable(reports, {}), AllOf(HasSubstr(" -\n"), HasSubstr("2.0 KiB"), Not(HasSubstr("0 B"))));
}

TEST(RankTable_ManyClasses, TimesAndBytesApart_WhereALineWouldBeTooLong) {
  std::vector<RankReport> reports(2);
  for (RankReport& report : reports) {
    report.wall_seconds = 10;
    for (const char* cause : {"dependency", "dispatch", "limit", "no_work", "transfer"})
      report.idle_seconds[cause] = 1;
    for (const char* name : {"activations", "buffers", "gradients", "optimizer", "weights"})
      report.peak_bytes[name] = 1 << 20;
  }
  const auto widest = [](const std::string& text) {
    size_t most = 0;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) most = std::max(most, line.size());
    return most;
  };
  const std::string wide = RankTable(reports, TextStyle{200}), folded = RankTable(reports);
  EXPECT_GT(widest(wide), 100u);
  EXPECT_LE(widest(folded), 100u);
  EXPECT_THAT(folded, AllOf(HasSubstr("transfer\n"), HasSubstr("\n\nrank  peak activations")));
}

TEST(RankTable_ManyRanks, CutWithAWordAboutIt) {
  std::vector<RankReport> reports(100);
  EXPECT_THAT(RankTable(reports), HasSubstr(".. and 68 more ranks"));
}

TEST(WriteSummary_Folder, CannotBeWritten_NamesTheFile) {
  const absl::Status status = WriteSummary(TwoRanks(), "/nonexistent/folder");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/folder/summary.json"));
}

TEST(WriteTraces_Folder, CannotBeWritten_EachFileIsNamed) {
  EXPECT_THAT(WriteTraces(TwoRanks(), "/nonexistent/folder"),
              ElementsAre(HasSubstr("/steps.jsonl"), HasSubstr("/actions.csv"), HasSubstr("/timeline.svg"),
                          HasSubstr("/trace.json")));
}

TEST(StepsMade_Resumed, SaysBothCounts) {
  RunSpec spec;
  spec.train.steps = 1200;
  EXPECT_EQ(StepsMade(spec, 3), "3 of 1200 steps");
  spec.resume = {"/c", 1080};
  EXPECT_EQ(StepsMade(spec, 3), "3 of 120 steps (resumed at step 1080; 1083 of 1200 are made)");
}

class StepLogTest : public ::testing::Test {
 protected:
  std::string Read() const {
    std::stringstream text;
    text << std::ifstream(folder_ / "steps.jsonl").rdbuf();
    return text.str();
  }
  // The numbers of the steps in the file.
  std::vector<int> Steps() const {
    std::istringstream lines(Read());
    std::vector<int> steps;
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
    return steps;
  }
  const TestFolder folder_;
};

TEST_F(StepLogTest, GoesOn_KeepsTheStepsBeforeAndCutsTheOthers) {
  const std::string before = "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n{\"st";
  std::ofstream(folder_ / "steps.jsonl") << before;
  StepLog log(folder_.path(), 2);
  EXPECT_EQ(Read(), before) << "nothing changes before a step is made";
  ASSERT_TRUE(log.Append(StepRecord{2, 0.5, true, 1, 1}).ok());
  ASSERT_TRUE(log.Append(StepRecord{3, 0.25, true, 1, 2}).ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(log.seconds().size(), 2u);
}

TEST_F(StepLogTest, LineThatIsNoStep_CostsNoOtherLine) {
  std::ofstream(folder_ / "steps.jsonl") << "{\"step\":0}\n{\"st\\0\n{\"step\":1}\n{\"step\":2}\n";
  StepLog log(folder_.path(), 3);
  ASSERT_TRUE(log.Append(StepRecord{3, 0.5, true, 1, 1}).ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2, 3));
}

TEST_F(StepLogTest, LinesThatCannotBeRead_AreNotWrittenOver) {
  const std::string before = "{\"step\":0}\n{\"step\":1}\n";
  std::ofstream(folder_ / "elsewhere.jsonl") << before;
  fs::create_symlink("steps.jsonl", folder_ / "steps.jsonl");  // a link to itself
  StepLog log(folder_.path(), 2);
  EXPECT_THAT(std::string(log.Append(StepRecord{2, 0.5, true, 1, 1}).message()), HasSubstr("cannot read"));
  fs::remove(folder_ / "steps.jsonl");
  fs::rename(folder_ / "elsewhere.jsonl", folder_ / "steps.jsonl");
  EXPECT_TRUE(log.Finish().ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2)) << "it is read as soon as that is possible";
}

// A validation that is made again after a resume is written again; the steps are counted without validations.
TEST_F(StepLogTest, Validations_HaveLinesOfTheirOwn) {
  {
    StepLog log(folder_.path(), 0);
    ASSERT_TRUE(log.Append(StepRecord{0, 0.5, true, 1, 1}).ok());
    ASSERT_TRUE(log.Append(StepRecord{1, 0.25, true, 1, 2}).ok());
    ASSERT_TRUE(log.Append(Validation{1, 1, 8, 8, 0.1, {{"accuracy", 0.75}}}).ok());
    ASSERT_TRUE(log.Append(Validation{1, 2, 8, 8, 0.2, {{"accuracy", 0.5}}}).ok());
    EXPECT_EQ(log.seconds().size(), 2u);
    EXPECT_EQ(log.validation()->step, 2);
  }
  EXPECT_THAT(Read(), HasSubstr("{\"step\":1,\"validation_loss\":0.1,\"validation_accuracy\":0.75,"
                                "\"validation_samples\":8}\n"));
  StepLog log(folder_.path(), 2);
  ASSERT_TRUE(log.Append(StepRecord{2, 0.5, true, 1, 1}).ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 1, 2)) << "that of the weights before step 2 is made again";
}

TEST_F(StepLogTest, CannotBeWritten_SaidOnceAndWrittenAtTheEnd) {
  fs::create_directory(folder_ / "steps.jsonl");  // in the file's place
  StepLog log(folder_.path(), 0);
  EXPECT_FALSE(log.Append(StepRecord{0, 0.5, true, 1, 1}).ok());
  EXPECT_TRUE(log.Append(StepRecord{1, 0.4, true, 1, 2}).ok());
  EXPECT_FALSE(log.Finish().ok());
  fs::remove(folder_ / "steps.jsonl");
  EXPECT_TRUE(log.Append(StepRecord{2, 0.3, true, 1, 3}).ok());
  EXPECT_TRUE(log.Finish().ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2));
  fs::remove(folder_ / "steps.jsonl");
  EXPECT_TRUE(log.Finish().ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2)) << "it was removed and is there again";
}

}  // namespace
}  // namespace weft::train_results_test
