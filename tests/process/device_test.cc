// Real trainings on a device whose memory is not the host's and whose work is done later: the numbers are
// those of the plain loop on the same device, whatever the schedule and the number of processes, and what
// goes wrong is said by name and ends.
//
// WEFT_TEST_DEVICE says which: testgpu (tests/testgpu), which needs no hardware and whose bits are the CPU's
// too, or cuda, where all cases are skipped, loudly, if there is no GPU that works.
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/child_processes.h"
#include "tests/process/command.h"
#include "tests/process/run_files.h"
#include "tests/process/standing_workers.h"

namespace weft::device_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kSeconds = 120;  // for one training on a machine that does much else

std::string DeviceName() {
  const char* const name = std::getenv("WEFT_TEST_DEVICE");
  return name == nullptr ? "testgpu" : name;
}

bool IsTestGpu() { return DeviceName() == "testgpu"; }

using Values = std::map<std::string, std::string>;

// Set for the processes that are started while it lives.
class Variables {
 public:
  explicit Variables(Values values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  const Values values_;
};

std::string Text(int bytes) {
  std::mt19937 rng(7);
  const char* words[] = {"warp ", "weft ", "loom ", "shuttle ", "reed ", "cloth ", "thread ", "heddle "};
  std::string text;
  while (static_cast<int>(text.size()) < bytes) text += words[rng() % 8];
  return text;
}

struct RunText {
  std::string model, data, train;
  // Whole, under a schedule.
  std::string Under(const std::string& schedule) const {
    return absl::StrCat("name: bits\nmodel: ", model, "\ndata: ", data, "\ntrain: ", train,
                        "\nstages: 4\nschedule: ", schedule, "\n");
  }
};

class DeviceProcess : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The test device's library is beside this program.
    const std::string folder = fs::read_symlink("/proc/self/exe").parent_path();
    setenv("WEFT_DEVICE_PATH", folder.c_str(), 0);
  }
  void SetUp() override {
    if (!Missing().empty()) GTEST_SKIP() << Missing();
    folder_.Write("text.txt", Text(20000));
  }
  static void TearDownTestSuite() {
    workers_.reset();
    if (Missing().empty()) return;
    std::fprintf(stderr, "\n*** %s WAS NOT TESTED: %d cases skipped: %s ***\n\n", DeviceName().c_str(),
                 ::testing::UnitTest::GetInstance()->current_test_suite()->total_test_count(),
                 Missing().c_str());
  }

  // Returns why the device cannot be used here; "" if it can.
  static const std::string& Missing() {
    static const auto* const missing = new std::string([] {
      if (IsTestGpu()) return std::string();
      const TestFolder folder;
      const CommandResult tried =
          Command::Run({"weft", "train", folder.Write("run.yaml", Gpt(folder, 1).Under("gpipe")), "--device",
                        DeviceName(), "--out", folder / "out"},
                       kSeconds);
      return tried.code == 78 ? tried.err : std::string();
    }());
    return *missing;
  }

  static RunText Gpt(const TestFolder& folder, int steps, int microbatches = 4) {
    if (!fs::exists(folder / "text.txt")) folder.Write("text.txt", Text(20000));
    return {"{gpt: {layers: 4, width: 32, heads: 2, context: 32, dropout: 0.1}}",
            absl::StrCat("{text: {path: ", folder / "text.txt", "}, order: sequential}"),
            absl::StrCat("{steps: ", steps, ", batch: 8, microbatches: ", microbatches,
                         ", seed: 5, optimizer: {adamw: {lr: 3.0e-3}}, clip_norm: 0.5}")};
  }
  RunText Gpt(int steps, int microbatches = 4) const { return Gpt(folder_, steps, microbatches); }
  RunText ResNet() const {
    WriteIdx(folder_, 64, 8);
    return {
        "{resnet18: {width: 4, channels: 1, size: 8, classes: 10}}",
        absl::StrCat("{idx: {images: ", folder_ / "images.idx", ", labels: ", folder_ / "labels.idx", "}}"),
        "{steps: 2, batch: 8, microbatches: 4, seed: 2, optimizer: {sgd: {lr: 0.1, momentum: 0.9}}}"};
  }

  struct Trained {
    CheckpointTensors initial, weights;
    std::vector<double> losses;
  };
  Trained Train(const std::string& run, const std::vector<std::string>& flags,
                std::string* err = nullptr) const {
    fs::remove_all(folder_ / "out");
    std::vector<std::string> command = {"weft",        "train", folder_.Write("run.yaml", run),
                                        "--overwrite", "--out", folder_ / "out"};
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult result = Command::Run(command, kSeconds);
    EXPECT_EQ(result.code, 0) << result.err;
    if (err != nullptr) *err = result.err;
    return ReadTrained();
  }
  // Trains on so many of the processes that all tests of bits share: they start once.
  Trained TrainOnWorkers(const std::string& run, int processes) const {
    if (workers_ == nullptr)
      workers_ = std::make_unique<StandingWorkers>(kMostProcesses,
                                                   std::vector<std::string>{"--device", DeviceName()});
    fs::remove_all(folder_ / "out");
    const CommandResult result = workers_->Train(folder_.Write("run.yaml", run),
                                                 {"--processes", absl::StrCat(processes)}, folder_ / "out");
    EXPECT_EQ(result.code, 0) << result.err;
    return ReadTrained();
  }
  Trained ReadTrained() const {
    Trained trained = {
        ReadTensors(folder_ / "out/checkpoint-0"), ReadTensors(folder_ / "out/checkpoint"), {}};
    std::ifstream steps(folder_ / "out/steps.jsonl");
    for (std::string line; std::getline(steps, line);) trained.losses.push_back(Json::parse(line)["loss"]);
    return trained;
  }
  Trained Reference(const std::string& run, const std::string& device) const {
    const Trained trained = Train(run, {"--reference", "--device", device});
    EXPECT_FALSE(trained.weights.empty());
    EXPECT_NE(trained.weights, trained.initial) << "the reference did not train";
    return trained;
  }

  // Expects the reference's bits under each schedule on each number of processes.
  void ExpectReferenceBits(const RunText& run, const std::string& reference_schedule,
                           const std::vector<std::string>& schedules,
                           const std::vector<int>& processes) const {
    // The test device's kernels are the CPU's, so its bits are those too.
    const Trained want = Reference(run.Under(reference_schedule), IsTestGpu() ? "cpu" : DeviceName());
    for (const std::string& schedule : schedules) {
      for (const int n : processes) {
        SCOPED_TRACE(absl::StrCat(schedule, " on ", n, " processes"));
        const Trained got = TrainOnWorkers(run.Under(schedule), n);
        EXPECT_EQ(got.initial, want.initial) << "initial weights differ";
        EXPECT_EQ(got.weights, want.weights) << "trained weights differ";
        EXPECT_EQ(got.losses, want.losses);
      }
    }
  }

  // A training of many steps on two processes.
  std::vector<std::string> LongTraining(const std::string& schedule = "1f1b") const {
    return {
        "weft",  "train",         folder_.Write("run.yaml", Gpt(1000000).Under(schedule) + "restarts: 0\n"),
        "--out", folder_ / "out", "--processes",
        "2",     "--device",      DeviceName()};
  }
  bool WaitForStep() const {
    for (int i = 0; i < kSeconds * 20; ++i) {
      if (!ReadWholeFile(folder_ / "out/steps.jsonl").empty()) return true;
      usleep(50'000);
    }
    return false;
  }

  const TestFolder folder_;

 private:
  static constexpr int kMostProcesses = 4;
  inline static std::unique_ptr<StandingWorkers> workers_;
};

const std::vector<std::string> kSchedules = {"ddp", "1f1b", "{lpp: {groups: 2, ranks: 2}}", "zb_h1", "fsdp"};

TEST_F(DeviceProcess, Gpt_EverySchedule_EndsWithTheReferencesBits) {
  ExpectReferenceBits(Gpt(3), "gpipe", kSchedules, {1, 2, 4});
}

TEST_F(DeviceProcess, Gpt_CyclicOrder_EndsWithTheReferencesBits) {
  const std::string schedule = "{ddp: {}, rule: cdp_v2}";
  ExpectReferenceBits(Gpt(3), schedule, {schedule}, {1, 2, 4});
}

TEST_F(DeviceProcess, ResNet18_EverySchedule_EndsWithTheReferencesBits) {
  ExpectReferenceBits(ResNet(), "gpipe", kSchedules, {1, 2, 4});
}

TEST_F(DeviceProcess, ResNet18_CyclicOrder_EndsWithTheReferencesBits) {
  const std::string schedule = "{ddp: {}, rule: cdp_v2}";
  ExpectReferenceBits(ResNet(), schedule, {schedule}, {1, 2, 4});
}

TEST_F(DeviceProcess, RecomputedAndOffloaded_EndWithTheReferencesBits) {
  ExpectReferenceBits(Gpt(2), "gpipe",
                      {"{1f1b: {}, activations: recompute}", "{1f1b: {}, activations: offload}",
                       "{zb_h1: {}, activations: offload}", "{fsdp: {}, activations: recompute}",
                       "{fsdp: {shard: width}, activations: offload}"},
                      {1, 2});
}

// A forward of a rank beside the backward of another micro-batch.
TEST_F(DeviceProcess, PairsOfJobs_EndWithTheReferencesBits) {
  ExpectReferenceBits(Gpt(2, 8), "gpipe", {"dualpipe", "dualpipe_v", "{dualpipe: {}, activations: offload}"},
                      {1, 2});
}

TEST_F(DeviceProcess, OutOfMemory_InTheMiddle_NamesJobClassAndBytes) {
  if (!IsTestGpu()) GTEST_SKIP() << "fails allocations on purpose";
  const Variables fail(Values{{"WEFT_TESTGPU_FAIL_ALLOCATION", "3000"}, {"WEFT_TESTGPU_FAIL_DEVICE", "1"}});
  const CommandResult result = Command::Run(LongTraining(), kSeconds);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, ::testing::ContainsRegex(
                              "(forward|backward|update).*step [0-9]+.*no memory for [0-9]+ bytes of class "
                              "(activations|buffers|gradients|weights)"));
}

TEST_F(DeviceProcess, ModelThatDoesNotFit_NamesClassAndBytes) {
  if (!IsTestGpu()) GTEST_SKIP() << "gives the device little memory";
  const Variables little(Values{{"WEFT_TESTGPU_MEMORY", "60000"}});
  const CommandResult result = Command::Run(LongTraining(), kSeconds);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("no memory for [0-9]+ bytes of class"));
}

TEST_F(DeviceProcess, KernelError_NamesTheJob) {
  if (!IsTestGpu()) GTEST_SKIP() << "breaks a kernel on purpose";
  for (const char* schedule : {"1f1b", "ddp", "fsdp"}) {
    SCOPED_TRACE(schedule);
    fs::remove_all(folder_ / "out");
    const Variables fail(Values{{"WEFT_TESTGPU_FAIL_JOB", "40"}, {"WEFT_TESTGPU_FAIL_DEVICE", "1"}});
    const CommandResult result = Command::Run(LongTraining(schedule), kSeconds);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, ::testing::ContainsRegex("step [0-9]+.*kernel error, as was asked for"));
  }
}

// A job ends each process that takes it. The run is given up after three of them, and says all that is known.
TEST_F(DeviceProcess, PoisonJob_IsQuarantinedWithTheLastWordsOfItsProcesses) {
  if (!IsTestGpu()) GTEST_SKIP() << "kills processes on purpose";
  const std::string job = "backward (step 4, stage 2, micro-batch 1)";
  const Variables deadly(Values{{"WEFT_TESTGPU_DEADLY_JOB", job}});
  const std::string run = Gpt(1000000).Under("1f1b") + "restarts: 10\ncheckpoint: {every: 2}\n";
  const CommandResult result = Command::Run({"weft", "train", folder_.Write("run.yaml", run), "--out",
                                             folder_ / "out", "--processes", "2", "--device", DeviceName()},
                                            kSeconds);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("quarantined: 3 processes in a row were lost with the same job"),
                                HasSubstr(job), HasSubstr("failed after 4 of 1000000 steps"),
                                ::testing::ContainsRegex("goes on from its checkpoint of step [24]")));
  const std::string words = absl::StrCat(
      ": testgpu: dies of it, as was asked for (before that it wrote: testgpu: takes up ", job, ")");
  const std::vector<std::string> parts = absl::StrSplit(result.err, words);
  ASSERT_EQ(parts.size(), 4u) << "each of three deaths: " << result.err;
#ifdef WEFT_TAKES_FATAL_SIGNALS
  const std::string dump =
      absl::StrCat("was killed by SIGABRT (its last events are in ", folder_ / "out/flight-weft-worker-");
#else
  const std::string dump = "was killed by SIGABRT";
#endif
  for (int i = 0; i < 3; ++i) EXPECT_THAT(parts[i], HasSubstr(dump));
}

// A loss is not a number, once. The step is made again, and nothing else is different.
TEST_F(DeviceProcess, LossThatIsNanOnce_EndsWithTheReferencesBits) {
  if (!IsTestGpu()) GTEST_SKIP() << "makes a number wrong on purpose";
  for (const char* const checkpoint : {"checkpoint: {every: 2}\n", ""}) {
    SCOPED_TRACE(checkpoint);
    const std::string run = Gpt(6).Under("1f1b") + checkpoint;
    const Trained want = Reference(run, "cpu");
    const std::string file = folder_.Write("nan", "forward (step 3, stage 3, micro-batch 2)\n");
    const Variables nan(Values{{"WEFT_TESTGPU_NAN_FILE", file}});
    const Trained got = Train(run, {"--device", DeviceName(), "--processes", "2"});
    EXPECT_EQ(got.weights, want.weights) << "trained weights differ";
    EXPECT_EQ(got.losses, want.losses);
    const Json summary = Json::parse(ReadWholeFile(folder_ / "out/summary.json"));
    EXPECT_EQ(summary["non_finite_steps"], 1);
    EXPECT_EQ(summary["restarts"], 1);
  }
}

TEST_F(DeviceProcess, DeviceThatIsLost_EndsItsProcessAndTheRunGoesOnInAnother) {
  if (!IsTestGpu()) GTEST_SKIP() << "loses the device on purpose";
  const std::string run = Gpt(6).Under("1f1b") + "checkpoint: {every: 2}\n";
  const Trained want = Reference(run, "cpu");
  const std::string file = folder_.Write("lost", "backward (step 3, stage 2, micro-batch 2)\n");
  const Variables lost(Values{{"WEFT_TESTGPU_LOST_FILE", file}});
  std::string err;
  const Trained got = Train(run, {"--device", DeviceName(), "--processes", "2"}, &err);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_FALSE(fs::exists(file)) << "nothing happened";
  // The job, one that its rank had given the device behind it, or a tensor of the job that was to be sent.
  EXPECT_THAT(err, ::testing::ContainsRegex(
                       "was lost: its device is lost to it: ((forward|backward) \\(step 3, stage 2, "
                       "|input_gradient of step 3, stage 2, micro-batch 2, ).*has fallen off the bus"));
}

// The device hangs in a job. That job alone is late, is named, and its process ends; the run goes on in
// another.
TEST_F(DeviceProcess, JobInWhichTheDeviceHangs_IsNamedAndTheRunGoesOnInAnotherProcess) {
  if (!IsTestGpu()) GTEST_SKIP() << "hangs the device on purpose";
  const char* const factor = std::getenv("WEFT_TEST_TIME_FACTOR");
  const int limit = 8 * (factor == nullptr ? 1 : std::atoi(factor));
  const std::string run = Gpt(6).Under("1f1b") + "checkpoint: {every: 2}\n" +
                          absl::StrCat("job_timeout: {at_least: ", limit, ", times: 2}\n");
  const Trained want = Reference(run, "cpu");
  const std::string file = folder_.Write("hang", "backward (step 3, stage 2, micro-batch 2)\n");
  const Variables hang(Values{{"WEFT_TESTGPU_HANG_FILE", file}});
  std::string err;
  const Trained got = Train(run, {"--device", DeviceName(), "--processes", "2"}, &err);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_FALSE(fs::exists(file)) << "nothing happened";
  EXPECT_THAT(
      err, AllOf(HasSubstr("it is stuck: backward (step 3, stage 2, micro-batch 2) of rank 2 has run for "),
                 HasSubstr(absl::StrCat("and may take ", limit, ".0 s")), HasSubstr("before it started)")));
}

// One job takes much longer than its like. No job fails: a message names the job, with the times that say
// why.
TEST_F(DeviceProcess, JobThatTakesLongOnce_IsToldOfAndFailsNothing) {
  if (!IsTestGpu()) GTEST_SKIP() << "delays a job on purpose";
  const std::string run = Gpt(4).Under("1f1b") + "restarts: 0\n";
  const Trained want = Reference(run, "cpu");
  const std::string file = folder_.Write("slow", "backward (step 2, stage 1, micro-batch 3)\n7\n");
  const Variables slow(Values{{"WEFT_TESTGPU_HANG_FILE", file}});
  std::string err;
  const Trained got = Train(run, {"--device", DeviceName(), "--processes", "2"}, &err);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_FALSE(fs::exists(file)) << "nothing happened";
  EXPECT_THAT(
      err,
      ::testing::ContainsRegex(
          "backward \\(step 2, stage 1, micro-batch 3\\) of rank 1 took [0-9.]+ s, "
          "where such jobs take [0-9.]+ s and at most [0-9.]+ s \\(claimed [0-9.]+ s and ready [0-9.]+ s "
          "before it started\\) on process 0"));
}

TEST_F(DeviceProcess, KilledWhilePeersHoldItsMemory_EndsAndIsNamed) {
  for (const char* schedule : {"1f1b", "fsdp"}) {
    SCOPED_TRACE(schedule);
    fs::remove_all(folder_ / "out");
    Command train(LongTraining(schedule));
    ASSERT_TRUE(WaitForStep());
    const std::vector<pid_t> workers = Children(train.pid());
    ASSERT_EQ(workers.size(), 2u);
    kill(workers[1], SIGKILL);
    const CommandResult result = train.Wait(60);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("killed by SIGKILL"), HasSubstr(std::to_string(workers[1]))));
    EXPECT_FALSE(Exists(workers[0]));
  }
}

TEST_F(DeviceProcess, Interrupted_StopsCleanly) {
  Command train(LongTraining());
  ASSERT_TRUE(WaitForStep());
  const std::vector<pid_t> workers = Children(train.pid());
  train.Signal(SIGINT);
  const CommandResult result = train.Wait(60);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.code, 130) << result.err;
  for (const pid_t pid : workers) EXPECT_FALSE(Exists(pid));
}

TEST_F(DeviceProcess, Device_IsSaidOnce) {
  const CommandResult result =
      Command::Run({"weft", "train", folder_.Write("run.yaml", Gpt(1).Under("1f1b")), "--out",
                    folder_ / "out", "--processes", "2", "--device", DeviceName()},
                   kSeconds);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(absl::StrCat("device ", DeviceName(), ":0")));
}

}  // namespace
}  // namespace weft::device_test
