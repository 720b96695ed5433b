// Tests what weft doctor finds about a machine and a coordinator, and how it judges.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "client/doctor/findings.h"
#include "client/doctor/machine_facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

MachineFacts Good() {
  MachineFacts facts;
  facts.processors = 16;
  facts.memory_bytes = int64_t{64} << 30;
  facts.open_files = 1 << 20;
  facts.locked_bytes = -1;
  facts.shared_memory_bytes = int64_t{8} << 30;
  facts.ptrace_scope = 1;
  return facts;
}

// Returns the verdict about a thing of the machine.
Severity Of(const MachineFacts& facts, const std::string& name) {
  for (const Finding& f : JudgeMachine(facts)) {
    EXPECT_EQ(f.severity == Severity::kOk, f.advice.empty()) << f.name;
    if (f.name == name) return f.severity;
  }
  ADD_FAILURE() << "nothing is said of " << name;
  return Severity::kBad;
}

TEST(JudgeMachine, MachineThatHasAll_IsFine) {
  const auto findings = JudgeMachine(Good());
  EXPECT_TRUE(std::all_of(findings.begin(), findings.end(),
                          [](const Finding& f) { return f.severity == Severity::kOk; }));
}

TEST(JudgeMachine, EachThingThatIsMissing_IsNamed) {
  MachineFacts facts = Good();
  facts.processor_quota = 0.5;
  EXPECT_EQ(Of(facts, "processors"), Severity::kSlow);
  facts.memory_bytes = 1 << 30;
  EXPECT_EQ(Of(facts, "memory"), Severity::kBad);
  facts.open_files = 1024;
  EXPECT_EQ(Of(facts, "open files"), Severity::kBad);
  facts.ptrace_scope = 2;
  EXPECT_EQ(Of(facts, "reading other processes"), Severity::kSlow);
  facts.gpu_driver = "580.65.06";
  EXPECT_EQ(Of(facts, "GPUs"), Severity::kBad);
  facts.gpus = 2;
  EXPECT_EQ(Of(facts, "GPUs"), Severity::kOk);
  EXPECT_EQ(Of(facts, "/dev/shm"), Severity::kOk);
  facts.shared_memory_bytes = 64 << 20;
  EXPECT_EQ(Of(facts, "/dev/shm"), Severity::kSlow);
  facts.rdma_devices = {"mlx5_0"};
  EXPECT_EQ(Of(facts, "RDMA devices"), Severity::kOk);
  facts.locked_bytes = 8 << 20;
  EXPECT_EQ(Of(facts, "RDMA devices"), Severity::kSlow);
}

TEST(ReadMachineFacts, FilesOfTheKernel_AreRead) {
  std::string root = (fs::temp_directory_path() / "weft_test_XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root + path).substr(0, (root + path).rfind('/')));
    std::ofstream(root + path) << text;
  };
  write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC 12\n");
  fs::create_directories(root + "/proc/driver/nvidia/gpus/0000:01:00.0");
  fs::create_directories(root + "/sys/class/infiniband/mlx5_0");
  fs::create_directories(root + "/dev/shm");
  const MachineFacts facts = ReadMachineFacts(root);
  fs::remove_all(root);
  EXPECT_EQ(facts.processor_quota, 1.5);
  EXPECT_EQ(facts.ptrace_scope, 2);
  EXPECT_EQ(facts.gpu_driver, "580.65.06");
  EXPECT_EQ(facts.gpus, 1);
  EXPECT_THAT(facts.rdma_devices, ElementsAre("mlx5_0"));
  EXPECT_TRUE(facts.shared_memory_bytes.has_value());
  EXPECT_GT(facts.processors, 0);
  EXPECT_NE(facts.open_files, 0);
}

TEST(ReadMachineFacts, NothingThere_IsMissing) {
  const MachineFacts facts = ReadMachineFacts("/nowhere");
  EXPECT_FALSE(facts.processor_quota.has_value());
  EXPECT_FALSE(facts.shared_memory_bytes.has_value());
  EXPECT_EQ(facts.gpu_driver, "");
}

TEST(JudgeCertificates, ExpiredSoonOrWrong_SaysSo) {
  EXPECT_EQ(JudgeCertificates({"c", "", "viewer 'a'", 300 * 86400}).severity, Severity::kOk);
  EXPECT_EQ(JudgeCertificates({"c", "", "viewer 'a'", 86400}).severity, Severity::kSlow);
  EXPECT_EQ(JudgeCertificates({"c", "", "authorities alone", INT64_MAX}).found, "authorities alone");
  EXPECT_EQ(JudgeCertificates({"c", "", "viewer 'a'", 2 * 86400}).found, "viewer 'a', valid for 2 days");
  const Finding wrong = JudgeCertificates({"c", "c/tls.key: cannot be read", "", 0});
  EXPECT_EQ(wrong.severity, Severity::kBad);
  EXPECT_THAT(wrong.advice, HasSubstr("tls.key"));
}

TEST(JudgeCoordinator, NobodyOrNoWorkers_SaysWhatToDo) {
  EXPECT_TRUE(AnyBad(JudgeCoordinator({"a:1", "a:1 unreachable", 0, 0, 0})));
  EXPECT_FALSE(AnyBad(JudgeCoordinator({"a:1", "", 0, 0, 0})));
  EXPECT_THAT(FindingsText(JudgeCoordinator({"a:1", "", 0, 0, 0})), HasSubstr("weft-worker --coordinator"));
  EXPECT_THAT(FindingsText(JudgeCoordinator({"a:1", "", 3, 1, 1})), HasSubstr("say nothing"));
  EXPECT_THAT(FindingsText(JudgeCoordinator({"a:1", "", 3, 1, 0})),
              AllOf(HasSubstr("3 connected, 1 free"), Not(HasSubstr("note"))));
}

TEST(FindingsText, Advice_StandsBelowWhatWasFound) {
  EXPECT_EQ(FindingsText({{Severity::kOk, "memory", "8 GiB", ""}, {Severity::kBad, "GPUs", "0", "pass one"}}),
            "ok    memory  8 GiB\nbad   GPUs    0\n              pass one\n");
  EXPECT_EQ(FindingsJson({{Severity::kSlow, "a", "b", "c"}})[0]["verdict"], "note");
}

}  // namespace
}  // namespace weft
