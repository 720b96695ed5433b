// Golden transcripts: which jobs each rank runs, in order and when, for every family at four stages and eight
// micro-batches.
//
// A transcript is a text file under tests/golden/schedules. After a wanted change, WEFT_UPDATE_GOLDEN=1
// writes them anew; read the diff.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "schedules/families.h"
#include "schedules/simulate.h"

namespace weft {
namespace {

struct Case {
  std::string file, name;
  std::map<std::string, std::string> parameters;
};

// One line a rank: start time, then stage, kind and micro-batch as in "0f3" and "0b3".
std::string Transcript(const Case& c) {
  const auto schedule = MakeSchedule(c.name, c.parameters, 4, 8);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const Graph graph(*schedule);
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  options.record_jobs = true;
  const auto run = Simulate(graph, options);
  EXPECT_TRUE(run.ok()) << run.status();
  std::string text =
      absl::StrFormat("%s, forward 1, backward 2: makespan %g\n", schedule->name, run->makespan);
  for (Rank rank = 0; rank < schedule->ranks; ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const SimulatedJob& j : run->jobs) {
      if (j.rank != rank || !HasMicrobatch(j.job.kind)) continue;
      absl::StrAppendFormat(&text, " %g:%d%c%d", j.start, j.job.stage, JobKindName(j.job.kind)[0],
                            j.job.microbatch);
    }
    text += "\n";
  }
  return text;
}

class ScheduleGolden : public ::testing::TestWithParam<Case> {};

TEST_P(ScheduleGolden, FourStagesEightMicrobatches_GiveTheRecordedTable) {
  const std::string path =
      absl::StrCat(std::getenv("WEFT_SOURCE"), "/tests/golden/schedules/", GetParam().file, ".txt");
  const std::string actual = Transcript(GetParam());
  if (std::getenv("WEFT_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "transcript " << path;
}

INSTANTIATE_TEST_SUITE_P(Families, ScheduleGolden,
                         ::testing::Values(Case{"ddp", "ddp", {}}, Case{"gpipe", "gpipe", {}},
                                           Case{"1f1b", "1f1b", {}},
                                           Case{"lpp_2_2", "lpp", {{"groups", "2"}, {"ranks", "2"}}},
                                           Case{"lpp_2_4", "lpp", {{"groups", "2"}, {"ranks", "4"}}},
                                           Case{"lpp_8_1", "lpp", {{"groups", "8"}, {"ranks", "1"}}}),
                         [](const auto& info) {
                           return (info.param.file[0] == '1' ? "f" : "") + info.param.file;
                         });

}  // namespace
}  // namespace weft
