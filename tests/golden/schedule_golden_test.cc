// Golden tables of schedules: which jobs each rank runs, in order and when, for every family at eight
// micro-batches and four stages, or eight where more show more; those on old weights at sizes of their own.
//
// A table is a text file under tests/golden/schedules. After a wanted change, WEFT_UPDATE_GOLDEN=1
// writes them anew; read the diff.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_golden_test {
namespace {

struct Case {
  std::string file, name;
  std::map<std::string, std::string> parameters;
  int stages = 4;
  std::string rule = "sync";
  int microbatches = 8, steps = 1;
};

// One line a rank: start time, then stage, kind and micro-batch as in "0f3" and "0b3"; a split backward's
// halves are "0i3" and "0w3". Several steps, for old weights: "0f3/t1v0" is of step 1 and reads version 0.
std::string Transcript(const Case& c) {
  auto schedule = MakeSchedule(c.name, c.parameters, c.stages, c.microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_TRUE(ApplyRule(c.rule, c.name, &*schedule).ok());
  const Graph graph(WithoutTerms(*schedule));
  SimulationOptions options;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  options.record_jobs = true;
  options.steps = c.steps;
  const auto run = Simulate(graph, options);
  EXPECT_TRUE(run.ok()) << run.status();
  std::string text = absl::StrFormat("%s, forward 1, backward %s: makespan %g\n", schedule->name,
                                     schedule->split_backward ? "1+1" : "2", run->makespan);
  for (Rank rank = 0; rank < schedule->ranks; ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const SimulatedJob& j : run->jobs) {
      if (j.rank != rank || !HasMicrobatch(j.job.kind)) continue;
      constexpr char kLetters[kJobKinds] = {'f', 'b', 'i', 'w', 0, 0};
      absl::StrAppendFormat(&text, " %g:%d%c%d", j.start, j.job.stage, kLetters[static_cast<int>(j.job.kind)],
                            j.job.microbatch);
      // The text names the step, where steps overlap, and the version of the weights that the job reads.
      if (c.steps > 1) absl::StrAppendFormat(&text, "/t%dv%d", j.job.step, j.weights_version);
    }
    text += "\n";
  }
  return text;
}

class ScheduleGolden : public ::testing::TestWithParam<Case> {};

TEST_P(ScheduleGolden, ItsSizes_GiveTheRecordedTable) {
  const std::string path =
      absl::StrCat(std::getenv("WEFT_SOURCE"), "/tests/golden/schedules/", GetParam().file, ".txt");
  const std::string actual = Transcript(GetParam());
  if (std::getenv("WEFT_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "transcript " << path;
}

INSTANTIATE_TEST_SUITE_P(
    Families, ScheduleGolden,
    ::testing::Values(Case{"ddp", "ddp", {}}, Case{"gpipe", "gpipe", {}}, Case{"1f1b", "1f1b", {}},
                      Case{"lpp_2_2", "lpp", {{"groups", "2"}, {"ranks", "2"}}},
                      Case{"lpp_2_4", "lpp", {{"groups", "2"}, {"ranks", "4"}}},
                      Case{"lpp_8_1", "lpp", {{"groups", "8"}, {"ranks", "1"}}}, Case{"fsdp", "fsdp", {}},
                      Case{"fslpp_2_2", "fslpp", {{"groups", "2"}, {"ranks", "2"}}},
                      Case{"depth_first_2", "depth_first", {{"ranks", "2"}}},
                      Case{"breadth_first_2", "breadth_first", {{"ranks", "2"}}},
                      Case{"interleaved_2", "interleaved", {{"ranks", "2"}}},
                      Case{"interleaved_4", "interleaved", {{"ranks", "4"}}, 8}, Case{"zb_h1", "zb_h1", {}},
                      Case{"zb_h2", "zb_h2", {}}, Case{"zb_v", "zb_v", {}}, Case{"v_half", "v_half", {}},
                      Case{"v_half_8", "v_half", {}, 8}, Case{"v_min", "v_min", {}},
                      Case{"v_min_8", "v_min", {}, 8}, Case{"dualpipe", "dualpipe", {}},
                      Case{"dualpipe_v_8", "dualpipe_v", {}, 8},
                      Case{"gpipe_cdp_v1", "gpipe", {}, 4, "cdp_v1", 4, 2},
                      Case{"ddp_cdp_v2", "ddp", {}, 4, "cdp_v2", 4, 2},
                      Case{"cdp_mp_cdp_v2", "cdp_mp", {}, 3, "cdp_v2", 3, 3},
                      Case{"pipedream", "pipedream", {}, 4, "sync", 1, 6},
                      Case{"pipedream_2bw", "pipedream_2bw", {}, 4, "sync", 4, 2},
                      Case{"periodic_apart",
                           "periodic",
                           {{"placement", "0+1+0"},
                            {"window", "8"},
                            {"forward", "0+2+4+6+8+10"},
                            {"backward", "9+6+5+15+12+11"}},
                           3}),
    [](const auto& info) { return (info.param.file[0] == '1' ? "f" : "") + info.param.file; });

}  // namespace
}  // namespace weft::schedule_golden_test
