// The versions of weights that real runs hold: as many as the simulator says, in no more bytes than are
// counted for a memory budget.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/simulator/simulate.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::weight_versions_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Case {
  std::string schedule;
  int microbatches = 4;
  int stages = 4;
  std::string more;  // lines of the run file
};

std::string WriteRun(const TestFolder& folder, const Case& c) {
  return WriteSmallRun(folder, {{"train", absl::StrCat("{steps: 12, batch: 8, microbatches: ", c.microbatches,
                                                       ", seed: 1, optimizer: {adamw: {lr: 1.0e-3}}}")},
                                {"stages", absl::StrCat(c.stages)},
                                {"schedule", c.schedule + "\n" + c.more}});
}

RunSpec ReadRun(const std::string& file) {
  const auto run = ReadRunFile(file);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(RunSpec{});
}

std::vector<int> SimulatedVersions(const RunSpec& run) {
  SimulationOptions options;
  options.steps = run.train.steps;
  const auto simulated = Simulate(Graph(*ScheduleOf(run)), options);
  EXPECT_TRUE(simulated.ok()) << simulated.status();
  std::vector<int> versions;
  for (const RankStats& rank : simulated->ranks) versions.push_back(rank.peak_weight_versions);
  return versions;
}

Json Train(const TestFolder& folder, const std::string& file, int processes) {
  const CommandResult r = Command::Run(
      {"weft", "train", file, "--processes", absl::StrCat(processes), "--overwrite", "--out", folder / "out"},
      120);
  EXPECT_EQ(r.code, 0) << r.err;
  return r.code == 0 ? Json::parse(ReadWholeFile(folder / "out/summary.json")) : Json();
}

std::vector<Case> OldWeights() {
  std::vector<Case> cases = {
      {"pipedream", 1}, {"pipedream", 1, 2}, {"pipedream_2bw"}, {"pipedream_2bw", 2, 3}};
  for (const char* rule : {"cdp_v1", "cdp_v2"}) {
    for (const char* base : {"ddp: ", "fsdp: ", "fsdp: {residency: migrating}", "gpipe: ", "1f1b: ",
                             "cdp_mp: ", "lpp: {groups: 2, ranks: 2}", "lpp: {groups: 4, ranks: 1}"}) {
      cases.push_back({absl::StrCat("{", base, ", rule: ", rule, "}")});
    }
    cases.push_back({absl::StrCat("{ddp: , rule: ", rule, "}"), 2, 2});
    cases.push_back({absl::StrCat("{ddp: , rule: ", rule, "}"), 1, 1});
  }
  return cases;
}

TEST(WeightVersions, OfRealRuns_AreTheSimulatorsInTheBytesThatAreCounted) {
  TestFolder folder;
  for (const Case& c : OldWeights()) {
    SCOPED_TRACE(absl::StrCat(c.schedule, ", ", c.stages, " stages"));
    const std::string file = WriteRun(folder, c);
    const RunSpec run = ReadRun(file);
    const Json summary = Train(folder, file, std::min(2, c.stages));
    if (HasFailure()) return;
    const RunSchedule schedule = *ScheduleOf(run);
    const RunMemory counted = CountRun(run, schedule);
    const Graph graph(schedule);
    const auto versions_held = summary["peak_weight_versions"].get<std::vector<int>>();
    if (graph.protocol(0).passes_sums()) {
      // A version that comes late, after the last reader of the one before, is alone.
      const std::vector<int> simulated = SimulatedVersions(run);
      ASSERT_EQ(versions_held.size(), simulated.size());
      for (size_t r = 0; r < simulated.size(); ++r) EXPECT_LE(versions_held[r], simulated[r]) << "rank " << r;
      // The home of ddp makes each version when its own micro-batch has ended, before that reads on.
      if (static_cast<int>(graph.members(0).size()) == schedule.scheme.ranks) {
        EXPECT_EQ(versions_held.back(), simulated.back());
      }
    } else {
      EXPECT_EQ(versions_held, SimulatedVersions(run));
    }
    for (int rank = 0; rank < schedule.scheme.ranks; ++rank) {
      const Json& peak = summary["peak_bytes"][rank];
      const int64_t weights = peak["weights"].get<int64_t>();
      EXPECT_LE(weights + peak["gradients"].get<int64_t>() + peak["optimizer"].get<int64_t>(),
                counted.ranks[rank].held())
          << "rank " << rank;
      // The number of versions in that memory: the moments are two of a version's size.
      const int versions = summary["peak_weight_versions"][rank];
      if (graph.members(0).size() == 1 &&
          graph.route() == nullptr) {  // one stage a rank, or all of the same versions
        EXPECT_GE(2 * weights, versions * peak["optimizer"].get<int64_t>()) << "rank " << rank;
      }
    }
  }
}

// The second version decides whether a run fits.
TEST(WeightVersions, MemoryBudget_CountsThem) {
  TestFolder folder;
  // The need includes the activations that the cyclic order leaves on each rank.
  const auto need = [](const RunSpec& run) {
    const RunMemory counted = CountRun(run, *ScheduleOf(run));
    const auto ranks = static_cast<int>(counted.ranks.size());
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      most = std::max(most, counted.ranks[r].held() + counted.ranks[r].work +
                                (ranks - r) * counted.forwards.activation_bytes[r]);
    }
    return most;
  };
  const int64_t newest = need(ReadRun(WriteRun(folder, {"gpipe"})));
  const int64_t both = need(ReadRun(WriteRun(folder, {"{gpipe: , rule: cdp_v1}"})));
  ASSERT_GT(both, newest);
  const auto with = [&](const std::string& schedule, int64_t bytes) {
    return WriteRun(folder, {schedule, 4, 4, absl::StrCat("memory: ", bytes, "\n")});
  };
  const CommandResult refused = Command::Run({"weft", "train", with("{gpipe: , rule: cdp_v1}", newest),
                                              "--processes", "2", "--out", folder / "out"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.err, HasSubstr("memory: rank "));
  for (const auto& [schedule, bytes] :
       std::vector<std::pair<std::string, int64_t>>{{"gpipe", newest}, {"{gpipe: , rule: cdp_v1}", both}}) {
    SCOPED_TRACE(schedule);
    const Json summary = Train(folder, with(schedule, bytes), 2);
    if (HasFailure()) return;
    for (const Json& rank : summary["peak_bytes"]) {
      int64_t sum = 0;
      for (const auto& [memory_class, of_class] : rank.items()) {
        if (memory_class != "host") sum += of_class.get<int64_t>();
      }
      EXPECT_LE(sum, bytes);
    }
  }
}

}  // namespace
}  // namespace weft::weight_versions_test
