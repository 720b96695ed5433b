// Tests the measurements of short trainings with the real programs, beside the simulator's figures: weft
// compare --measure, weft profile, and pictures of live activations.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/run_files.h"

namespace weft::measure_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
namespace fs = std::filesystem;

// `rows` by schedule.
std::map<std::string, Json> BySchedule(const std::string& out) {
  std::map<std::string, Json> rows;
  const Json all = Json::parse(out);
  for (const Json& row : all["schedules"]) rows[row["schedule"]] = row;
  return rows;
}

TEST(CompareMeasure, SeveralSchedules_AreMeasuredBesideTheSimulator) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder);
  const CommandResult r =
      Command::Run({"weft", "compare", file, "--measure", "--schedules", "1f1b,ddp,rule=cdp_v2",
                    "--schedules", "pipedream,lpp,groups=1,ranks=1,lpp,groups=99,ranks=1", "--steps", "3",
                    "--processes", "2", "--repeats", "1", "--out", folder / "kept", "-o", "json"},
                   180);
  ASSERT_EQ(r.code, 0) << r.err;
  auto rows = BySchedule(r.out);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_TRUE(rows["1f1b"]["chosen"]);
  EXPECT_FALSE(rows["pipedream"]["ran"]);
  EXPECT_THAT(rows["pipedream"]["reason"].get<std::string>(), HasSubstr("after every micro-batch"));
  EXPECT_THAT(rows["lpp,groups=99,ranks=1"]["reason"].get<std::string>(), HasSubstr("at most 4 groups"));
  for (const char* name : {"1f1b", "ddp,rule=cdp_v2", "lpp,groups=1,ranks=1"}) {
    const Json& row = rows[name];
    SCOPED_TRACE(row.dump(2));
    ASSERT_TRUE(row["ran"]);
    EXPECT_GT(row["step_seconds"], 0);
    EXPECT_GT(row["predicted_step_seconds"], 0);
    EXPECT_EQ(row["rank_stats"].size(), row["ranks"]);
    EXPECT_GT(row["live_bytes"], 0);
    const double idle = row["idle_share"]["measured"].value("dependency", 0.0);
    EXPECT_TRUE(idle >= 0 && idle < 1) << idle;
    EXPECT_TRUE(row["idle_share"]["predicted"].is_object());
    EXPECT_EQ(row["step_seconds_of_repeats"].size(), 1u);
    // The same tensors travel, however the run went.
    EXPECT_EQ(row["bytes_sent"], row["simulated"]["bytes_sent"]);
    for (const Json& rank : row["rank_stats"]) {
      EXPECT_GT(rank["peak_bytes"]["activations"], 0);
      EXPECT_GT(rank["peak_bytes"]["weights"], 0);
      EXPECT_EQ(rank["peak_weight_versions"], rank["simulated"]["peak_weight_versions"]);
    }
  }
  EXPECT_EQ(rows["1f1b"]["processes"], 2);
  EXPECT_EQ(rows["lpp,groups=1,ranks=1"]["processes"], 1) << "no more than it has ranks";
  EXPECT_EQ(rows["1f1b"]["communication_steps"], 1);
  EXPECT_EQ(rows["lpp,groups=1,ranks=1"]["communication_steps"], 0);
  EXPECT_EQ(rows["ddp,rule=cdp_v2"]["simulated"]["live_activations"], 10) << "N(N+1)/2";
  EXPECT_TRUE(fs::exists(folder / "kept/ddp-rule-cdp_v2/trace.json"));
}

TEST(CompareMeasure, Table_HasWhatRanAndTheReasonsOfTheOthers) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder);
  const CommandResult r = Command::Run({"weft", "compare", file, "--measure", "--schedules", "1f1b,pipedream",
                                        "--steps", "1", "--repeats", "2", "--memory", "1GB"},
                                       120);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("1f1b *"), HasSubstr("peak by rank"), HasSubstr("sent a step"),
                           HasSubstr("did not run\npipedream: ")));
  EXPECT_THAT(r.out, AllOf(HasSubstr("2 times in turn"), HasSubstr("spread"), HasSubstr("idle for")));
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("2 of 2, round 1 of 2: pipedream"), HasSubstr("1 of 2, round 2 of 2: 1f1b")));
  EXPECT_THAT(r.err, Not(HasSubstr("round 2 of 2: pipedream"))) << "what was refused is not tried again";
}

TEST(CompareMeasure, NothingRan_Fails) {
  const TestFolder folder;
  const CommandResult r =
      Command::Run({"weft", "compare", WriteSmallRun(folder), "--measure", "--schedules", "pipedream"}, 60);
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, HasSubstr("pipedream: "));
}

TEST(CompareMeasure, Options_OfOneKindOfComparisonAreRefusedForTheOther) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder);
  EXPECT_EQ(Command::Run({"weft", "compare", file, "--repeats", "2"}).code, 2);
  EXPECT_EQ(Command::Run({"weft", "compare", file, "--measure", "--bandwidth", "1GB"}).code, 2);
}

TEST(CompareMeasure, CtrlC_EndsTheTrainingThatIsRunning) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder, {{"train", "{steps: 1, batch: 16, microbatches: 4}"}});
  Command command({"weft", "compare", file, "--measure", "--schedules", "1f1b", "--repeats", "1", "--steps",
                   "1000000", "--out", folder / "kept"});
  ASSERT_TRUE(command.WaitFor("1 of 1", 30));
  // The training has begun.
  for (int i = 0; i < 600 && !fs::exists(folder / "kept/1f1b/checkpoint-0"); ++i) {
    usleep(100'000);
  }
  command.Signal(SIGINT);
  const CommandResult r = command.Wait(30);
  EXPECT_EQ(r.code, 130);
  EXPECT_THAT(r.err, HasSubstr("SIGINT"));
  EXPECT_FALSE(fs::exists(folder / "kept/1f1b/summary.json"));
}

TEST(Profile, SmallRun_IsWhatTheSimulatorTakes) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder), path = folder / "profile.json";
  const CommandResult r = Command::Run({"weft", "profile", file, "--steps", "3", "-o", path}, 120);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json profile = Json::parse(ReadWholeFile(path));
  EXPECT_EQ(profile["unit"], "s");
  ASSERT_EQ(profile["layers"].size(), 6u);
  for (const Json& layer : profile["layers"]) {
    for (const char* key : {"forward", "backward", "backward_input", "backward_weight", "update",
                            "activation_bytes", "weight_bytes"}) {
      EXPECT_GT(layer[key], 0) << key << " of " << layer;
    }
  }
  // On a busy machine a fit may have one of them alone.
  EXPECT_GT(profile.value("latency", 0.0) + profile.value("bandwidth", 0.0), 0)
      << "of a tensor from one process to another";
  // Blocks have the same sizes.
  EXPECT_EQ(profile["layers"][1]["activation_bytes"], profile["layers"][4]["activation_bytes"]);
  const CommandResult simulated = Command::Run(
      {"weft", "simulate", "1f1b", "--stages", "3", "--microbatches", "4", "--profile", path, "-o", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_GT(Json::parse(simulated.out)["makespan"], 0);
  EXPECT_EQ(Command::Run({"weft", "compare", file, "--profile", path}).code, 0);
}

// With so many steps, a measurement would not end.
TEST(Profile, OutputThatCannotBeWritten_IsRefusedWithItsCause) {
  const TestFolder folder;
  const std::string file = WriteSmallRun(folder), good = folder / "good", none = folder / "none/file";
  const auto refused = [&](const std::string& output, const std::string& network, const std::string& cause) {
    const CommandResult r = Command::Run(
        {"weft", "profile", file, "--steps", "1000000", "-o", output, "--ranks", "2", "--network", network});
    EXPECT_EQ(r.code, 78) << r.err;
    EXPECT_EQ(r.err, "weft: cannot write " + cause + "\n");
  };
  refused(none, good, none + ": No such file or directory");
  refused(good, none, none + ": No such file or directory");
  refused(folder.path(), good, folder.path() + ": Is a directory");
  refused(file + "/profile.json", good, file + "/profile.json: Not a directory");
  EXPECT_FALSE(fs::exists(good));
}

TEST(MemoryPicture, SimulatedAndMeasured_HaveTheirPeaks) {
  const CommandResult simulated =
      Command::Run({"weft", "simulate", "ddp", "ddp,rule=cdp_v2", "--stages", "4", "--microbatches", "4",
                    "--steps", "3", "--activation", "1MiB", "-o", "memory"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_THAT(simulated.out,
              AllOf(HasSubstr("ddp, simulated: peak 16.0 MiB"),
                    HasSubstr("ddp,rule=cdp_v2, simulated: peak 10.0 MiB, 38 % below the first")));
  const TestFolder folder;
  ASSERT_EQ(Command::Run({"weft", "train", WriteSmallRun(folder), "--out", folder / "out"}, 120).code, 0);
  const std::string trace = folder / "out/trace.json";
  const CommandResult measured = Command::Run({"weft", "simulate", trace, "-o", "memory"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, AllOf(HasSubstr("small: 1f1b, measured: peak "), HasSubstr("iB; mean")));
  // Units of time that cannot be in one picture.
  const CommandResult both = Command::Run(
      {"weft", "simulate", trace, "ddp", "--stages", "4", "--microbatches", "4", "-o", "memory"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("in one unit"));
  EXPECT_EQ(Command::Run({"weft", "simulate", "ddp", "gpipe", "--stages", "4", "--microbatches", "4"}).code,
            2);
}

}  // namespace
}  // namespace weft::measure_test
