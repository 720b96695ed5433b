// Tests what weft doctor finds about a machine and a coordinator, and how it judges.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/net/address.h"
#include "base/net/listener.h"
#include "client/doctor/findings.h"
#include "client/doctor/machine_facts.h"
#include "client/doctor/port_facts.h"
#include "client/doctor/program_facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/test_folder.h"

namespace weft::doctor_test {
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
  facts.clock_synchronized = true;
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
  EXPECT_EQ(Of(facts, "locked memory"), Severity::kOk);
  facts.locked_bytes = 8 << 20;
  EXPECT_EQ(Of(facts, "locked memory"), Severity::kSlow);
  facts.rdma_devices.clear();
  EXPECT_EQ(Of(facts, "locked memory"), Severity::kOk) << "only RDMA needs it";
  facts.clock_synchronized = false;
  EXPECT_EQ(Of(facts, "clock"), Severity::kSlow);
  facts.clock_synchronized.reset();
  EXPECT_EQ(Of(facts, "clock"), Severity::kOk);
  facts.shared_memory_bytes.reset();
  EXPECT_EQ(Of(facts, "/dev/shm"), Severity::kSlow);
}

TEST(ReadMachineFacts, FilesOfTheKernel_AreRead) {
  const TestFolder folder;
  const std::string& root = folder.path();
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

TEST(JudgeCertificates, None_AreNeededOnThisMachine) {
  EXPECT_EQ(JudgeCertificates({}).severity, Severity::kOk);
  EXPECT_EQ(JudgeCertificates({}).found, "none");
}

TEST(JudgePorts, PortOfACoordinator_IsFreeOrItsOwn) {
  PortFacts facts;
  facts.listen = "127.0.0.1:7070";
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kOk);
  facts.listen_problem = "cannot listen on 127.0.0.1:7070";
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kSlow);
  EXPECT_THAT(JudgePorts(facts)[0].advice, HasSubstr("--listen"));
  facts.is_asked = true;
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kOk);
}

TEST(JudgePorts, RangeOfDataPorts_HasOneThatIsFree) {
  PortFacts facts;
  EXPECT_TRUE(JudgePorts(facts).empty()) << "neither program tells its ports";
  facts.data_ports = "";
  ASSERT_EQ(JudgePorts(facts).size(), 1u) << "no coordinator would listen here";
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kOk);
  facts.data_ports = "20000-20003";
  facts.all_data_ports = 4;
  facts.free_data_ports = 1;
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kOk);
  EXPECT_EQ(JudgePorts(facts)[0].found, "20000-20003: 1 of 4 free");
  facts.free_data_ports = 0;
  EXPECT_EQ(JudgePorts(facts)[0].severity, Severity::kBad);
}

TEST(ReadPortFacts, PortInUse_IsNeitherFreeNorCounted) {
  auto held = Listener::Open({*ParseAddress("0.0.0.0:0")}, 0);
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string port = absl::StrCat((*held)->addresses()[0].port);
  const PortFacts taken = ReadPortFacts(absl::StrCat("127.0.0.1:", port), port);
  EXPECT_THAT(taken.listen_problem, HasSubstr("in use"));
  EXPECT_EQ(taken.all_data_ports, 1);
  EXPECT_EQ(taken.free_data_ports, 0);
  EXPECT_EQ(ReadPortFacts("", port + "-").all_data_ports, 0) << "the worker refuses it as well";
}

TEST(ParseProgramFacts, Answers_GiveReleaseLibrariesAndSettings) {
  const ProgramFacts facts = ParseProgramFacts("weft-worker 0.1.0\nLibTorch 2.9.1, UCX 1.19.0\n",
                                               {{"data-ports", "7-9", "file", "worker.yaml:1"}});
  EXPECT_EQ(facts.release, "0.1.0");
  EXPECT_EQ(facts.libraries, "LibTorch 2.9.1, UCX 1.19.0");
  EXPECT_EQ(facts.settings.at("data-ports"), "7-9");
  EXPECT_EQ(facts.problem, "");
}

TEST(JudgeProgram, MissingBrokenOrOther_IsTold) {
  const auto judge = [](const ProgramFacts& facts, const std::string& release) {
    const Finding worker = JudgeProgram("weft-worker", facts, release);
    const Finding coordinator = JudgeProgram("weft-coordinator", facts, release);
    EXPECT_EQ(worker.name, "weft-worker");
    EXPECT_EQ(coordinator.name, "weft-coordinator");
    EXPECT_EQ(worker.severity, coordinator.severity);
    return coordinator;
  };
  ProgramFacts facts;
  EXPECT_EQ(judge(facts, "0.1.0").severity, Severity::kOk) << "a machine of clients alone";
  facts.is_there = true;
  facts.release = "0.1.0";
  EXPECT_EQ(judge(facts, "0.1.0").severity, Severity::kOk);
  EXPECT_EQ(judge(facts, "0.2.0").severity, Severity::kSlow);
  facts.problem = "there is no LibTorch";
  EXPECT_EQ(judge(facts, "0.1.0").severity, Severity::kBad);
  EXPECT_EQ(judge(facts, "0.1.0").advice, "there is no LibTorch");
}

// A coordinator with two workers, as it should be.
CoordinatorFacts Answering() {
  CoordinatorFacts facts;
  facts.address = "a:1";
  facts.workers = 3;
  facts.free_workers = 1;
  facts.own_release = facts.release = "0.1.0";
  facts.clock_ahead = 0.25;
  facts.clock_error = 0.001;
  facts.releases = {{"0.1.0", 3}};
  facts.libraries = {{"LibTorch 2.9.1", 3}};
  return facts;
}

Finding Named(const CoordinatorFacts& facts, const std::string& name) {
  for (const Finding& f : JudgeCoordinator(facts)) {
    if (f.name == name) return f;
  }
  ADD_FAILURE() << "nothing is said of " << name;
  return {};
}

TEST(JudgeCoordinator, NobodyOrNoWorkers_SaysWhatToDo) {
  CoordinatorFacts facts = Answering();
  EXPECT_THAT(FindingsText(JudgeCoordinator(facts)),
              AllOf(HasSubstr("3 connected, 1 free"), Not(HasSubstr("note"))));
  facts.silent_workers = 1;
  EXPECT_THAT(Named(facts, "workers").advice, HasSubstr("say nothing"));
  facts = Answering();
  facts.workers = facts.free_workers = 0;
  EXPECT_FALSE(AnyBad(JudgeCoordinator(facts)));
  EXPECT_THAT(Named(facts, "workers").advice, HasSubstr("weft-worker --coordinator"));
  facts.problem = "a:1 unreachable";
  EXPECT_TRUE(AnyBad(JudgeCoordinator(facts)));
}

TEST(JudgeCoordinator, Clock_MayBeASecondOffAndWhatTheQuestionTook) {
  CoordinatorFacts facts = Answering();
  const auto verdict = [&facts] { return Named(facts, "coordinator's clock").severity; };
  EXPECT_EQ(verdict(), Severity::kOk);
  EXPECT_EQ(Named(facts, "coordinator's clock").found, "250 ms before this one's, to within 1 ms");
  facts.clock_ahead = -2;
  EXPECT_EQ(verdict(), Severity::kSlow);
  EXPECT_THAT(Named(facts, "coordinator's clock").found, HasSubstr("2 s behind"));
  facts.clock_error = 1.5;
  EXPECT_EQ(verdict(), Severity::kOk) << "the answer took so long that the clocks may agree";
  facts.clock_ahead.reset();
  EXPECT_EQ(verdict(), Severity::kOk) << "an older release";
}

TEST(JudgeCoordinator, OtherReleasesAndLibraries_AreNoted) {
  CoordinatorFacts facts = Answering();
  const auto verdict = [&facts](const std::string& name) { return Named(facts, name).severity; };
  EXPECT_EQ(verdict("releases"), Severity::kOk);
  EXPECT_EQ(verdict("workers' libraries"), Severity::kOk);
  facts.releases[""] = 1;
  facts.libraries[""] = 1;
  EXPECT_EQ(verdict("releases"), Severity::kSlow);
  EXPECT_EQ(Named(facts, "releases").found, "weft 0.1.0, coordinator 0.1.0, workers not told (1); 0.1.0 (3)");
  EXPECT_EQ(verdict("workers' libraries"), Severity::kSlow);
  facts = Answering();
  facts.release = "0.2.0";
  EXPECT_EQ(verdict("releases"), Severity::kSlow);
}

TEST(FindingsText, Cells_AreWrappedIntoTheirColumns) {
  EXPECT_EQ(FindingsText({{Severity::kOk, "memory", "8 GiB", "2 GiB", ""},
                          {Severity::kBad, "GPUs", "0", "", "pass one"}}),
            "check   verdict  found  needed  what to do\n"
            "memory  ok       8 GiB  2 GiB\n"
            "GPUs    bad      0      -       pass one\n");
  TextStyle narrow;
  narrow.width = 60;
  const std::string text = FindingsText(
      {{Severity::kBad, "GPUs", "one two three four five six", "seven eight nine ten", "do this and that"}},
      narrow);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 60u) << line;
  EXPECT_THAT(text, HasSubstr("GPUs   bad      one two three"));
}

TEST(FindingsJson, Finding_HasItsFields) {
  const auto json = FindingsJson({{Severity::kSlow, "a", "b", "c", "d"}})[0];
  EXPECT_EQ(json["verdict"], "note");
  EXPECT_EQ(json["needed"], "c");
  EXPECT_EQ(json["advice"], "d");
}

}  // namespace
}  // namespace weft::doctor_test
