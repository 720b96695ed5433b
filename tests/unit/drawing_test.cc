#include "schedules/drawing.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "schedules/families.h"
#include "schedules/simulate.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<DrawnJob> Simulated(const char* name, int stages, int microbatches, int steps,
                                double update = 0) {
  const Graph graph(*MakeSchedule(name, {}, stages, microbatches));
  SimulationOptions options;
  options.steps = steps;
  options.record_jobs = true;
  options.duration[static_cast<int>(JobKind::kBackward)] = {2};
  options.duration[static_cast<int>(JobKind::kUpdate)] = {update};
  std::vector<DrawnJob> jobs;
  const auto result = Simulate(graph, options);
  for (const SimulatedJob& j : result->jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  return jobs;
}

DrawingOptions Options(int ranks, int stages) {
  DrawingOptions options;
  options.title = "1f1b";
  options.subtitle = "a test";
  options.ranks = ranks;
  options.stages = stages;
  return options;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Reads XML as far as SVG timelines use it: elements, attributes in double quotes, texts with entities.
// Returns what is wrong, or "".
std::string XmlProblem(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      if (xml[at] == '&' && xml.compare(at, 4, "&lt;") != 0 && xml.compare(at, 4, "&gt;") != 0 &&
          xml.compare(at, 5, "&amp;") != 0 && xml.compare(at, 6, "&quot;") != 0) {
        return absl::StrCat("a bare & at ", at);
      }
      if (static_cast<unsigned char>(xml[at]) < 0x20 && xml[at] != '\n')
        return absl::StrCat("a control at ", at);
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return "an element without end";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return absl::StrCat("a < inside <", tag);
    if (Count(tag, "\"") % 2 != 0) return absl::StrCat("odd quotes in <", tag);
    const std::string name = tag.substr(0, tag.find_first_of(" /"));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return absl::StrCat("<", tag, "> closes nothing");
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : absl::StrCat("<", open.back(), "> is never closed");
}

TEST(DrawSvg_Simulated, EveryJobThatTakesTime_OneBox) {
  const std::string svg = DrawSvg(Simulated("1f1b", 4, 8, 1, 0.5), Options(4, 4));
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_EQ(Count(svg, "<rect class=\"k0"), 32u);
  EXPECT_EQ(Count(svg, "<rect class=\"k1"), 32u);
  EXPECT_EQ(Count(svg, "<rect class=\"k5"), 4u);
  EXPECT_THAT(svg, HasSubstr("<title>forward (step 0, stage 1, micro-batch 0), 1 to 2</title>"));
  for (const char* word :
       {"rank 3", "forward", "backward", "update", "idle", "time units", ">1f1b<", "a test"}) {
    EXPECT_THAT(svg, HasSubstr(word));
  }
  EXPECT_THAT(svg, Not(HasSubstr("reduce")));
}

TEST(DrawSvg_Title, MarkupAndControls_Escaped) {
  DrawingOptions options = Options(1, 1);
  options.title = "<a> & \"b\"\x01";
  const std::string svg = DrawSvg({}, options);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_THAT(svg, HasSubstr("&lt;a&gt; &amp; &quot;b&quot;<"));
}

TEST(DrawSvg_Boxes, ManyThinnerThanAHair_Merged) {
  std::vector<DrawnJob> jobs;
  for (int b = 0; b < 50000; ++b) {
    jobs.push_back({Job::Compute(0, 0, b, JobKind::kForward), 0, b * 1e-3, (b + 1) * 1e-3});
  }
  const std::string svg = DrawSvg(jobs, Options(1, 1));
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_LT(Count(svg, "<rect class"), 5000u);
  EXPECT_GT(Count(svg, "<rect class"), 1000u);
  EXPECT_THAT(svg, HasSubstr("100 %"));
}

TEST(DrawSvg_Seconds, ShortRun_AxisInMilliseconds) {
  DrawingOptions options = Options(1, 1);
  options.time = DrawnTime::kSeconds;
  const std::string svg = DrawSvg({{Job::Compute(0, 0, 0, JobKind::kForward), 0, 100.0, 100.05}}, options);
  EXPECT_THAT(svg, HasSubstr(">ms<"));
  EXPECT_THAT(svg, HasSubstr(">50<"));
  EXPECT_THAT(svg, HasSubstr("0 s to 50 ms"));
}

TEST(DrawLines_Simulated, OneLineARank_ShowsKindsAndIdle) {
  const std::string lines = DrawLines(Simulated("1f1b", 2, 2, 1), Options(2, 2), 9, /*unicode=*/false);
  // Rank 0: f f . B B . . B B; rank 1: . f B B f B B . .  with one character a time unit.
  EXPECT_EQ(lines,
            "rank 0 ff..BB.BB\n"
            "rank 1 .fBBfBB..\n"
            "       f forward  B backward  . idle  (9 time units across)\n");
}

TEST(DrawLines_Empty, NoJobs_AllIdle) {
  EXPECT_THAT(DrawLines({}, Options(1, 1), 4, false), HasSubstr("rank 0 ....\n"));
}

TEST(DrawTrace_Simulated, IsJsonWithOneTrackARank) {
  DrawingOptions options = Options(4, 4);
  options.title = "a \"quoted\" \xff name";
  const auto trace = nlohmann::json::parse(DrawTrace(Simulated("1f1b", 4, 8, 2), options));
  int complete = 0, named = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      ++complete;
      EXPECT_EQ(event["tid"], event["args"]["stage"]);
      if (event["name"] == "backward s3 b0" && event["args"]["step"] == 0) {
        EXPECT_DOUBLE_EQ(event["ts"], 4000);
        EXPECT_DOUBLE_EQ(event["dur"], 2000);
      }
    }
    named += event["name"] == "thread_name" ? 1 : 0;
  }
  EXPECT_EQ(complete, 2 * (64 + 4));
  EXPECT_EQ(named, 4);
}

TEST(DrawTrace_OverlappedPair, BoxesOfATrackNeverOverlap) {
  const Job forward = Job::Compute(0, 0, 1, JobKind::kForward);
  const Job backward = Job::Compute(0, 0, 0, JobKind::kBackward);
  const Job later = Job::Compute(0, 0, 1, JobKind::kBackward);
  // In the order in which they end; the second starts as the first ends.
  const std::string text =
      DrawTrace({{backward, 1, 2, 4}, {forward, 1, 1, 5}, {later, 1, 5, 6}}, Options(2, 1));
  std::map<std::string, int> track;
  std::map<int, std::string> name;
  const auto trace = nlohmann::json::parse(text);
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") track[event["name"]] = event["tid"];
    if (event["name"] == "thread_name") name[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(name, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {3, "rank 1, second"}}));
  EXPECT_EQ(track,
            (std::map<std::string, int>{{"forward s0 b1", 1}, {"backward s0 b0", 3}, {"backward s0 b1", 1}}));
}

TEST(DrawActions_Simulated, RowsOfActions_InOrderOfStart) {
  EXPECT_EQ(DrawActions(Simulated("1f1b", 2, 3, 1), Options(2, 2)),
            "0F0,0F1,0B0,0F2,0B1,0B2\n"
            "1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(LastSteps_Bound, WholeStepsOnly_AtLeastOne) {
  const std::vector<DrawnJob> jobs = Simulated("1f1b", 2, 2, 5);
  const size_t step = jobs.size() / 5;
  EXPECT_EQ(LastSteps(jobs, 1).size(), step);
  EXPECT_EQ(LastSteps(jobs, 2 * step).size(), 2 * step);
  EXPECT_EQ(LastSteps(jobs, 3 * step - 1).size(), 2 * step);
  EXPECT_EQ(LastSteps(jobs, 1000 * step).size(), jobs.size());
  for (const DrawnJob& j : LastSteps(jobs, 1)) EXPECT_EQ(j.job.step, 4);
  EXPECT_TRUE(LastSteps({}, 10).empty());
}

TEST(FormatTable_Cells, NumbersRight_WordsLeft_WidthsInCharacters) {
  EXPECT_EQ(FormatTable({"rank", "name", "n"}, {{"0", "\u00e9t\u00e9", "5"}, {"10", "winter", "-12"}}),
            "rank  name      n\n"
            "   0  \u00e9t\u00e9       5\n"
            "  10  winter  -12\n");
}

TEST(FormatNumbers_Units, Boundaries_ThreeDigits) {
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(12.5e-6), "12.5 us");
  EXPECT_EQ(FormatSeconds(0.34), "340 ms");
  EXPECT_EQ(FormatSeconds(0.99951), "1 s");
  EXPECT_EQ(FormatSeconds(90), "90 s");
  EXPECT_EQ(FormatSeconds(150.2), "2 min 30 s");
  EXPECT_EQ(FormatSeconds(3661), "1 h 01 min");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(1023.9 * 1024), "1.0 MiB");
  EXPECT_EQ(FormatBytes(200.0 * (1 << 30)), "200 GiB");
}

}  // namespace
}  // namespace weft
