// `--device` of the commands and of the worker: what cannot be had is one sentence and exit code 78, before
// anything is written; what is asked for reaches the library of every worker process.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"

namespace weft::device_flag_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kRun[] = R"(
name: two_stages
model: {gpt: {layers: 2, width: 8, heads: 2, context: 8}}
data: {text: {path: text.txt}}
train: {steps: 2, batch: 4, microbatches: 2}
stages: 2
schedule: 1f1b
)";

class DeviceFlag : public ::testing::Test {
 protected:
  DeviceFlag() {
    setenv("WEFT_DEVICE_PATH", WEFT_TEST_DEVICES, 1);
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);  // also where there is a GPU, this test sees none
    folder_.Write("text.txt", std::string(4000, 'a'));
    run_ = folder_.Write("run.yaml", kRun);
  }
  ~DeviceFlag() override {
    unsetenv("WEFT_DEVICE_PATH");
    unsetenv("CUDA_VISIBLE_DEVICES");
  }

  CommandResult Train(const std::vector<std::string>& further) {
    std::vector<std::string> words = {"weft",  "train",         run_,          "--overwrite",
                                      "--out", folder_ / "out", "--processes", "2"};
    words.insert(words.end(), further.begin(), further.end());
    return Command::Run(words, 120);
  }
  bool WroteAnything() const { return std::filesystem::exists(folder_ / "out"); }

  TestFolder folder_;
  std::string run_;
};

TEST_F(DeviceFlag, NoDevice_IsAMistakeOfUsage) {
  for (const char* text : {"gpu0!", "cpu:0", "cuda:-1", "cuda:"}) {
    const CommandResult result = Train({"--device", text});
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_THAT(result.err, HasSubstr("is not a device; use cpu, auto, cuda or cuda:1")) << text;
  }
}

TEST_F(DeviceFlag, CudaThatIsNotThere_IsBadConfigurationInOneSentence) {
  const CommandResult result = Train({"--device", "cuda"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, AllOf(StartsWith("weft: --device cuda: "), HasSubstr("NVIDIA driver")));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  EXPECT_FALSE(WroteAnything());
}

TEST_F(DeviceFlag, EveryCommandThatComputes_RefusesWhatIsNotThere) {
  const std::vector<std::vector<std::string>> commands = {
      {"weft", "train", run_, "--reference", "--overwrite", "--out", folder_ / "out"},
      {"weft", "eval", run_, "--checkpoint", folder_ / "none"},
      {"weft", "profile", run_},
      {"weft", "compare", run_, "--measure", "--schedules", "ddp"},
      {"weft-worker", "--coordinator", absl::StrCat("unix:", folder_ / "none.sock")}};
  for (std::vector<std::string> words : commands) {
    words.insert(words.end(), {"--device", "nothing:1"});
    const CommandResult result = Command::Run(words);
    EXPECT_EQ(result.code, 78) << words[1];
    EXPECT_THAT(result.err, HasSubstr("--device nothing:1: libweft_nothing.so is not in")) << words[1];
  }
  EXPECT_FALSE(WroteAnything());
}

TEST_F(DeviceFlag, LibraryThatRefusesInTheWorker_IsBadConfigurationInItsWords) {
  const CommandResult result = Train({"--device", "refuses"});
  EXPECT_EQ(result.code, 78);
  EXPECT_EQ(result.err.substr(result.err.rfind("weft: --device")),
            "weft: --device refuses: its door is locked; unlock it\n");
}

TEST_F(DeviceFlag, Auto_TakesTheCpuAndSaysWhy) {
  const CommandResult result = Train({"--device", "auto"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("weft: device cpu, because "), HasSubstr("NVIDIA driver")));
  const CommandResult cpu = Train({});
  EXPECT_EQ(cpu.code, 0) << cpu.err;
  EXPECT_THAT(cpu.err, Not(HasSubstr("device")));
}

TEST_F(DeviceFlag, Library_GetsTheFlagsAndTheNumberOfEachProcess) {
  const CommandResult plain = Train({"--device", "good"});
  EXPECT_EQ(plain.code, 1);  // that device computes nothing
  EXPECT_THAT(plain.err, AllOf(HasSubstr("weft: device good:-1 (process 0 graphs)\n"),
                               HasSubstr("weft: device good:-1 (process 1 graphs)\n"),
                               HasSubstr("it computes nothing")));
  const CommandResult marked = Train({"--device", "good:3", "--no-graphs", "--nvtx"});
  EXPECT_THAT(marked.err, HasSubstr("weft: device good:3 (process 1 marks)\n"));
}

}  // namespace
}  // namespace weft::device_flag_test
