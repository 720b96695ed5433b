#include "schedules/drawing/drawing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "schedules/drawing/drawing_loss.h"
#include "schedules/families/families.h"
#include "schedules/simulator/simulate.h"
#include "tests/unit/without_terms.h"

namespace weft::drawing_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<DrawnJob> Simulated(const char* name, int stages, int microbatches, int steps,
                                double update = 0) {
  const Graph graph(WithoutTerms(*MakeSchedule(name, {}, stages, microbatches)));
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

// Returns the texts of the boxes, in order.
std::vector<std::string> Labels(const std::string& svg) {
  std::vector<std::string> labels;
  for (size_t at = svg.find("<text class=\"x"); at != std::string::npos;
       at = svg.find("<text class=\"x", at + 1)) {
    const size_t begin = svg.find('>', at) + 1;
    labels.push_back(svg.substr(begin, svg.find('<', begin) - begin));
  }
  return labels;
}

TEST(DrawSvg_SeveralStagesOfARank, LabelledAsActions_WithTheirLettersInTheLegend) {
  const std::string svg = DrawSvg(Simulated("ddp", 2, 2, 1), Options(2, 2));
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_THAT(Labels(svg), ElementsAre("0F0", "1F0", "1B0", "0B0", "0F1", "1F1", "1B1", "0B1"));
  EXPECT_THAT(svg, HasSubstr(">4F6: stage 4, micro-batch 6 (F forward, B backward)<"));
}

// A label is measured by its letters, of which W is the broadest; a box that is too narrow for it in one line
// has it in two.
TEST(DrawSvg_NarrowBoxes, LabelsStayInside_InTwoLinesWhereNeeded) {
  const auto picture = [](int microbatch, double end) {
    const Job job = Job::Compute(0, 3, microbatch, JobKind::kBackwardWeight);
    const Job other = Job::Compute(0, 4, 0, JobKind::kForward);
    return DrawSvg({{job, 0, 0, end}, {other, 0, 50, 1100}}, Options(1, 5));
  };
  EXPECT_THAT(Labels(picture(4, 20)), ElementsAre("3W4", "4F0"));
  EXPECT_THAT(picture(4, 20), HasSubstr("font-size:7.89px"))
      << "18 of 20 pixels are for 2.28 letters' heights";
  EXPECT_THAT(Labels(picture(4, 15)), ElementsAre("3W", "4", "4F0"));
  EXPECT_THAT(Labels(picture(4, 10)), ElementsAre("4F0")) << "nobody could read it";
}

TEST(DrawSvg_Ground, NamedInTheLegendWhereItIsSeen) {
  const std::vector<DrawnJob> jobs = {{Job::Compute(0, 0, 0, JobKind::kForward), 0, 0, 10},
                                      {Job::Compute(0, 0, 0, JobKind::kBackward), 0, 12, 20}};
  DrawingOptions options = Options(1, 1);
  EXPECT_THAT(DrawSvg(jobs, options), HasSubstr(">idle<"));
  options.idle = {{0, 10, 12, "dependency"}};
  EXPECT_THAT(DrawSvg(jobs, options), AllOf(HasSubstr(">idle: dependency<"), Not(HasSubstr(">idle<"))));
  options.idle = {{0, 10, 12, "transfer"}};
  EXPECT_THAT(DrawSvg(jobs, options), AllOf(HasSubstr(">idle: transfer<"), Not(HasSubstr("dependency"))));
  EXPECT_THAT(DrawSvg(absl::MakeConstSpan(jobs).subspan(0, 1), Options(1, 1)), Not(HasSubstr("idle")));
}

// Each step has one micro-batch: its number would be 0 everywhere.
TEST(DrawSvg_OneMicrobatchAStep, LabelledByStep) {
  const std::string svg = DrawSvg(Simulated("pipedream", 2, 1, 3), Options(2, 2));
  EXPECT_THAT(Labels(svg), ElementsAre("0", "1", "0", "2", "1", "2", "0", "0", "1", "1", "2", "2"));
  EXPECT_THAT(svg, HasSubstr(">number: step<"));
}

TEST(DrawSvg_SeveralSteps, NumberedAboveAndMarkedBelowTheRows) {
  const std::string one = DrawSvg(Simulated("1f1b", 2, 2, 1), Options(2, 2));
  EXPECT_THAT(one, Not(AnyOf(HasSubstr("odd step"), HasSubstr(">step 0<"), HasSubstr("class=\"s0\""))));
  const std::string two = DrawSvg(Simulated("1f1b", 2, 2, 2), Options(2, 2));
  EXPECT_EQ(XmlProblem(two), "");
  EXPECT_THAT(two, AllOf(HasSubstr(">step 0<"), HasSubstr(">step 1<"), HasSubstr(">odd step<")));
  EXPECT_EQ(Count(two, "class=\"s0\""), 2u) << "one for each rank";
  EXPECT_EQ(Count(two, "class=\"s1\""), 2u);
}

TEST(DrawSvg_Replicas, NamedBesideTheStagesOfTheirRanks) {
  const std::string svg = DrawSvg(Simulated("ddp", 3, 2, 1), Options(2, 3));
  EXPECT_THAT(svg, AllOf(HasSubstr(">stages 0-2, replica 1/2<"), HasSubstr(">stages 0-2, replica 2/2<")));
  EXPECT_THAT(DrawSvg(Simulated("1f1b", 2, 2, 1), Options(2, 2)),
              AllOf(HasSubstr(">stage 1<"), Not(HasSubstr("replica"))));
}

TEST(DrawSvg_SumsOfGradients, ThatTakeNoTime_AreSeen) {
  const std::string svg = DrawSvg(Simulated("ddp", 2, 2, 1), Options(2, 2));
  EXPECT_THAT(svg, HasSubstr("class=\"k4t0\""));
  EXPECT_THAT(svg, HasSubstr("<title>reduce (step 0, stage 1"));
  EXPECT_THAT(svg, HasSubstr(">reduce<"));
}

TEST(DrawSvg_WholeAndHalfBackwards, HaveAColourAndAnEntryEach) {
  const Job whole = Job::Compute(0, 0, 0, JobKind::kBackward),
            half = Job::Compute(0, 0, 1, JobKind::kBackwardInput);
  const std::string svg = DrawSvg({{whole, 0, 0, 2}, {half, 0, 2, 3}}, Options(1, 1));
  EXPECT_THAT(svg, AllOf(HasSubstr(">backward<"), HasSubstr(">backward_input<")));
  const auto colour = [&](const std::string& of) {
    const size_t at = svg.find("." + of + "{fill:");
    EXPECT_NE(at, std::string::npos);
    return svg.substr(at + of.size() + 7, 7);
  };
  EXPECT_NE(colour("k1t0"), colour("k2t0"));
}

TEST(DrawSvg_IdleTimes, HatchedByCause_AllButTheBubble) {
  DrawingOptions options = Options(2, 2);
  options.idle = {{0, 2, 3, "transfer"}, {0, 3, 4, "limit"}, {1, 0, 1, "dependency"}, {1, -5, -1, "memory"}};
  const std::string svg = DrawSvg(Simulated("1f1b", 2, 2, 1), options);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_THAT(svg, HasSubstr("<title>idle: transfer, 2 to 3</title>"));
  EXPECT_THAT(svg, AllOf(HasSubstr("fill=\"url(#limit)\""), HasSubstr("<pattern id=\"limit\""),
                         HasSubstr(">idle: limit<"), HasSubstr(">idle: dependency<")));
  EXPECT_THAT(svg, Not(AnyOf(HasSubstr("url(#dependency)"), HasSubstr("memory)"))));
}

DrawnTransfer Transfer(TensorKind tensor, double start, double end) {
  return {0, 1, tensor, Job::Compute(0, 1, 0, JobKind::kForward), start, end, 2048};
}

TEST(DrawSvg_Transfers, AreUnderTheRowOfWhoReceives_InTheColourOfTheirKind) {
  DrawingOptions options = Options(2, 2);
  options.transfers = {Transfer(TensorKind::kActivation, 1, 2), Transfer(TensorKind::kWeights, 3, 3),
                       Transfer(TensorKind::kActivation, 4, 4), Transfer(TensorKind::kOrder, 1, 2)};
  const std::string svg = DrawSvg(Simulated("1f1b", 2, 2, 1), options);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_THAT(svg, HasSubstr("<title>activation of stage 1 from rank 0, 2.0 KiB, 1 to 2</title>"));
  EXPECT_EQ(Count(svg, "<rect class=\"c0\""), 1u) << "an activation that takes no time goes without saying";
  EXPECT_EQ(Count(svg, "<rect class=\"c1\""), 1u) << "weights never do";
  EXPECT_THAT(svg, HasSubstr("<title>weights of stage 1 from rank 0, 2.0 KiB, 1 to 1</title>"))
      << "where they are read";
  EXPECT_THAT(svg, AllOf(HasSubstr(">activations arrive<"), HasSubstr(">weights arrive<")));
  EXPECT_THAT(svg, Not(HasSubstr("gradients of weights")));
}

TEST(DrawSvg_ManyEntries, LegendGoesOnInFurtherLines) {
  DrawingOptions options = Options(1, 1);
  double at = 0;
  for (const char* cause : {"transfer", "limit", "memory", "dispatch", "reduce", "recovery", "no_work"}) {
    options.idle.push_back({0, at, at + 1, cause});
    ++at;
  }
  const std::string svg = DrawSvg({{Job::Compute(0, 0, 0, JobKind::kForward), 0, 0, 1},
                                   {Job::Compute(0, 0, 1, JobKind::kForward), 0, 8, 20}},
                                  options);
  for (size_t x = svg.find(" x=\""); x != std::string::npos; x = svg.find(" x=\"", x + 1)) {
    EXPECT_LT(std::stod(svg.substr(x + 4)), 1322) << "outside of the picture";
  }
  EXPECT_EQ(Count(svg, "font-size=\"11\">idle: "), 8u);
}

TEST(DrawTrace_IdleAndTransfers, EventsBesideTheJobs_OnTracksWhereNothingOverlaps) {
  DrawingOptions options = Options(2, 2);
  options.idle = {{1, 0, 1, "dependency"}};
  options.transfers = {Transfer(TensorKind::kActivation, 1, 3), Transfer(TensorKind::kWeights, 2, 4),
                       Transfer(TensorKind::kGradient, 4, 5), Transfer(TensorKind::kOrder, 1, 2)};
  const auto trace = nlohmann::json::parse(DrawTrace(Simulated("1f1b", 2, 2, 1), options));
  std::map<int, std::string> name;
  std::map<std::string, std::string> track;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") name[event["tid"]] = event["args"]["name"];
    if (event["ph"] != "X" || (event["cat"] != "idle" && event["cat"] != "transfer")) continue;
    track[event["name"]] = name[event["tid"]];
    if (event["cat"] == "idle") {
      EXPECT_EQ(event["args"]["cause"], "dependency");
      EXPECT_DOUBLE_EQ(event["dur"], 1000);
    }
  }
  EXPECT_EQ(track, (std::map<std::string, std::string>{{"idle: dependency", "rank 1"},
                                                       {"activation s1 b0 from rank 0", "rank 1, receives"},
                                                       {"weights s1 b0 from rank 0", "rank 1, receives 2"},
                                                       {"gradient s1 b0 from rank 0", "rank 1, receives"}}));
}

TEST(DrawSvg_PlannedJobs, AreInARowOfTheirOwnAboveTheRanks) {
  DrawingOptions options = Options(2, 2);
  const std::vector<DrawnJob> jobs = Simulated("1f1b", 2, 2, 1);
  const std::string plain = DrawSvg(jobs, options);
  options.planned = jobs;
  for (DrawnJob& j : options.planned) j.end = j.start + (j.end - j.start) / 2;
  const std::string svg = DrawSvg(jobs, options);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_EQ(Count(plain, ">planned<"), 0u);
  EXPECT_EQ(Count(svg, ">planned<"), 2u);
  EXPECT_EQ(Count(svg, "<title>backward (step 0, stage 1, micro-batch 0), 2 to 3</title>"), 1u) << "the plan";
  EXPECT_EQ(Count(svg, "<title>backward (step 0, stage 1, micro-batch 0), 2 to 4</title>"), 1u) << "the run";
  EXPECT_THAT(svg, HasSubstr("upper row of a rank: planned"));
}

TEST(DrawTrace_PlannedJobs, AreOnTracksAboveTheirRanks) {
  DrawingOptions options = Options(2, 2);
  options.planned = Simulated("1f1b", 2, 2, 1);
  const auto trace = nlohmann::json::parse(DrawTrace(Simulated("1f1b", 2, 2, 1), options));
  std::map<int, std::string> name;
  std::map<std::string, int> place;
  int planned = 0, jobs = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") name[event["tid"]] = event["args"]["name"];
    if (event["name"] == "thread_sort_index") place[name[event["tid"]]] = event["args"]["sort_index"];
    if (event["ph"] != "X") continue;
    ++(event["cat"] == "planned" ? planned : jobs);
    const std::string rank = absl::StrCat("rank ", event["args"]["rank"].get<int>());
    EXPECT_EQ(name[event["tid"]], event["cat"] == "planned" ? rank + ", planned" : rank);
  }
  EXPECT_EQ(planned, jobs);
  EXPECT_LT(place["rank 0, planned"], place["rank 0"]);
  EXPECT_LT(place["rank 0"], place["rank 1, planned"]);
  EXPECT_LT(place["rank 1, planned"], place["rank 1"]);
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
  jobs.reserve(50000);
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
  EXPECT_THAT(svg, HasSubstr(">time (ms)<"));
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
  // The jobs are listed in the order in which they end; the second starts as the first ends.
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

TEST(FormatTable_TooWide, ColumnsGoOnBelow_EachBlockWithItsKey) {
  const TextStyle narrow = {33};
  EXPECT_EQ(FormatTable({"rank", "first column", "second one", "third"},
                        {{"0", "a", "b", "1"}, {"1", "c", "d", "22"}}, narrow),
            "rank  first column  second one\n"
            "   0  a             b\n"
            "   1  c             d\n"
            "\n"
            "rank  third\n"
            "   0      1\n"
            "   1     22\n");
}

TEST(FormatTable_CellsThatCannotFit, GoOnInTheNextLine) {
  const TextStyle narrow = {26};
  EXPECT_EQ(FormatTable({"name", "reason"}, {{"a", "it needs 8 ranks, more than 4"}, {"b", "none"}}, narrow),
            "name  reason\n"
            "a     it needs 8 ranks,\n"
            "      more than 4\n"
            "b     none\n");
  const std::string text = FormatTable({"schedule", "n"}, {{std::string(60, 'k'), "5"}}, TextStyle{30});
  EXPECT_EQ(Count(text, "k"), 60u);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 30u) << line;
}

TEST(FormatTable_AnyWidth, NoLineIsWider_NoCellIsLost) {
  std::vector<std::string> header = {"schedule"}, row = {"interleaved,ranks=4"};
  for (int c = 0; c < 30; ++c) {
    header.push_back(absl::StrCat("column ", c));
    row.push_back(absl::StrCat(std::string(c % 7, '#'), "cell", c));
  }
  for (const int width : {40, 57, 80, 100, 1000}) {
    const std::string text = FormatTable(header, {row, row}, TextStyle{width});
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
    }
    for (size_t c = 1; c < row.size(); ++c) EXPECT_GE(Count(text, row[c]), 2u) << row[c] << " in " << width;
  }
}

TEST(FormatTable_Colours, HeadingsOnly) {
  EXPECT_EQ(FormatTable({"n"}, {{"1"}}, TextStyle{100, true}), "\x1b[1mn\x1b[0m\n1\n");
}

TEST(WrapText_Words, BrokenAtSpaces_IndentedFromTheSecondLineOn) {
  EXPECT_EQ(WrapText("reason  it failed because of that", 18, 8),
            "reason  it failed\n        because of\n        that");
  EXPECT_EQ(WrapText("averylongwordthatstands alone\nkept", 10), "averylongwordthatstands\nalone\nkept");
  EXPECT_EQ(WrapText("", 10), "");
}

LossCurve Falling(int steps, double from, double to) {
  LossCurve curve;
  curve.title = "a run";
  for (int i = 0; i < steps; ++i)
    curve.training.push_back({i, from + (to - from) * i / std::max(1, steps - 1)});
  return curve;
}

TEST(DrawLoss_Curve, EachStepTheirMeanAndValidations) {
  LossCurve curve = Falling(201, 5.5, 1.5);
  curve.validation = {{99, 3.9}, {199, 1.75}};
  const std::string svg = DrawLoss(curve);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_THAT(svg,
              AllOf(HasSubstr(">each step<"), HasSubstr(">mean of 5 steps<"), HasSubstr(">step<"),
                    HasSubstr(">validation, 1.75 at the end<"), HasSubstr("validation at step 99: 3.9")));
  EXPECT_THAT(svg, AllOf(HasSubstr(">loss<"), HasSubstr(">200<"))) << "axes";
  EXPECT_EQ(Count(svg, "<circle"), 2u);
}

TEST(DrawLoss_Scale, LogarithmicOnlyWhereTheLossFallsTenfold) {
  EXPECT_THAT(DrawLoss(Falling(50, 2.3, 0.01)), HasSubstr("loss (logarithmic)"));
  EXPECT_THAT(DrawLoss(Falling(50, 5, 1)), Not(HasSubstr("logarithmic")));
  EXPECT_THAT(DrawLoss(Falling(50, 1, 0)), Not(HasSubstr("logarithmic")));
}

TEST(DrawLoss_LittleOrNothing, IsStillAPicture) {
  for (const int steps : {0, 1, 2}) {
    const std::string svg = DrawLoss(Falling(steps, 2, 2));
    EXPECT_EQ(XmlProblem(svg), "");
    EXPECT_THAT(svg, Not(AnyOf(HasSubstr("nan"), HasSubstr("inf"))));
  }
  LossCurve broken = Falling(30, 3, 2);
  broken.training[7].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(DrawLoss(broken), Not(HasSubstr("nan")));
}

TEST(DrawLoss_ManySteps, SmallPicture) { EXPECT_LT(DrawLoss(Falling(300000, 9, 3)).size(), 400000u); }

TEST(SmoothLoss_Window, MeanOfAsManyBeforeAsAfter) {
  const std::vector<LossPoint> smooth = SmoothLoss({{0, 1}, {1, 2}, {2, 6}, {3, 2}}, 3);
  ASSERT_EQ(smooth.size(), 4u);
  EXPECT_DOUBLE_EQ(smooth[0].loss, 1);
  EXPECT_DOUBLE_EQ(smooth[1].loss, 3);
  EXPECT_DOUBLE_EQ(smooth[2].loss, 10.0 / 3);
  EXPECT_DOUBLE_EQ(smooth[3].loss, 2);
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
}  // namespace weft::drawing_test
