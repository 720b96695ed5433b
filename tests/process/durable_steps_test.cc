// Ends the coordinator, then a worker, at each of its durable steps, by kill -9 and by a power cut that loses
// what was not synced (power_cut.cc), and starts it again, as systemd would. All that was acknowledged is
// there, once; no visible checkpoint is damaged; and every run ends with the bits of the plain loop.
//
// WEFT_SEEDS=N takes every step N times with each fault, WEFT_SEEDS=A-B those times from the A-th to the
// B-th; otherwise some steps get one of them.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/disturbed_service.h"

namespace weft::durable_steps_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// One fault: at which durable step, on which side of it, and whether what is not synced is lost.
struct Fault {
  int step = 0;  // 0: none
  bool before = false;
  int seed = 0;  // of what the power cut loses; 0: the machine keeps its power
};

// A program that a fault ends at a durable step below a folder, and that is started again without one. The
// log of its steps is FOLDER.log.
class Supervised {
 public:
  // Calls `on_end` between the end and the new start, on a thread of its own. `ready`: what the program says
  // when it handles signals.
  Supervised(
      const std::vector<std::string>& program, const std::string& folder, const Fault& fault,
      std::string ready, std::function<void()> on_end = [] {})
      : ready_(std::move(ready)), first_(WithFault(program, folder, fault)), thread_([this, program, on_end] {
          // The process is not reaped here, so its number stays its own.
          waitid(P_PID, static_cast<id_t>(first_.pid()), &end_, WEXITED | WNOWAIT);
          if (end_.si_code != CLD_KILLED || end_.si_status != SIGKILL) return;
          on_end();
          second_ = std::make_unique<Command>(program);
        }) {}
  // Prints what the program said, if the test ends before Stop.
  ~Supervised() {
    if (!thread_.joinable()) return;
    kill(first_.pid(), SIGKILL);
    thread_.join();
    std::cout << "the first process ended with code " << end_.si_code << ", status " << end_.si_status
              << "\n";
    for (Command* program : {&first_, second_.get()}) {
      if (program == nullptr) continue;
      program->Signal(SIGKILL);
      std::cout << "process " << program->pid() << " said:\n" << program->Wait(10).err;
    }
  }
  Supervised(const Supervised&) = delete;
  Supervised& operator=(const Supervised&) = delete;

  // Ends the program in order. Returns true if the fault came to pass.
  bool Stop(int seconds) {
    first_.Signal(SIGTERM);
    thread_.join();
    Command& living = second_ == nullptr ? first_ : *second_;
    if (second_ != nullptr) {
      EXPECT_TRUE(second_->WaitFor(ready_, seconds));  // it may have been started a moment ago
      second_->Signal(SIGTERM);
    }
    const CommandResult end = living.Wait(seconds);
    EXPECT_EQ(end.code, 0) << "signal " << end.signal << ": " << end.err;
    return second_ != nullptr;
  }

 private:
  static std::vector<std::string> WithFault(const std::vector<std::string>& program,
                                            const std::string& folder, const Fault& fault) {
    std::vector<std::string> command = {
        "/usr/bin/env", std::string("LD_PRELOAD=") + POWER_CUT_LIBRARY,
        // A sanitizer need not be the first library.
        "ASAN_OPTIONS=verify_asan_link_order=0", "POWER_CUT_ROOT=" + folder,
        "POWER_CUT_LOG=" + folder + ".log", absl::StrCat("POWER_CUT_AT=", fault.step),
        absl::StrCat("POWER_CUT_SIDE=", fault.before ? "before" : "after"),
        absl::StrCat("POWER_CUT_SEED=", fault.seed > 0 ? absl::StrCat(fault.seed) : "")};
    command.insert(command.end(), program.begin(), program.end());
    return command;
  }

  const std::string ready_;
  Command first_;
  std::unique_ptr<Command> second_;
  siginfo_t end_{};  // of the first
  std::thread thread_;
};

class DurableSteps : public DisturbedService {
 protected:
  std::vector<std::string> Program(const std::string& name, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {std::string(getenv("WEFT_BIN")) + "/" + name};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  std::vector<std::string> Coordinator(const std::string& folder) const {
    return Program("weft-coordinator",
                   {"--listen", address_, "--output-root", folder, "--store", folder + "/store"});
  }
  std::vector<std::string> Worker() const {
    return Program("weft-worker", {"--coordinator", address_, "--name", "w0"});
  }

  // Submits the run until it is acknowledged, as a script would. Returns its number.
  std::string SubmitPatiently(const std::string& out) {
    CommandResult r;
    EXPECT_TRUE(Eventually([&] {
      r = Weft({"submit", file_, "--processes", "1", "--out", out, "--detach"});
      return r.code != kUnavailable;
    }));
    EXPECT_EQ(r.code, 0) << r.err;
    return std::string(absl::StripAsciiWhitespace(r.out));
  }

  void ExpectRun(const std::string& number, const std::string& out) {
    CommandResult end;
    EXPECT_TRUE(Eventually([&] { return (end = Weft({"wait", number})).code != kUnavailable; }));
    EXPECT_EQ(end.code, 0) << "run " << number << ": " << end.err;
    // A coordinator that ends while it writes the files of an ended run writes them when it is back.
    EXPECT_TRUE(Eventually([&] { return LossesIn(out) == reference_.losses; }))
        << out << " has not each step once";
    EXPECT_TRUE(ReadTensors(out + "/checkpoint") == reference_.tensors) << out;
  }

  // Calls `disturb` with the faults and a folder for each; it returns whether the fault came to pass. Takes
  // every kStride-th step, or all with WEFT_SEEDS.
  void Sweep(const std::function<bool(const Fault&, const std::string&)>& disturb) {
    if (HasFailure()) return;
    fs::create_directories(folder_ / "whole");
    ASSERT_FALSE(disturb({}, folder_ / "whole"));
    const std::vector<std::string> steps =
        absl::StrSplit(ReadWholeFile(folder_ / "whole.log"), '\n', absl::SkipEmpty());
    ASSERT_GT(steps.size(), 10u) << "the library was not loaded";
    int first = 1, last = 0;
    const char* seeds = getenv("WEFT_SEEDS");
    const bool all = seeds != nullptr;
    if (all) {
      const std::vector<std::string> range = absl::StrSplit(seeds, '-');
      ASSERT_TRUE(absl::SimpleAtoi(range.back(), &last) &&
                  (range.size() == 1 || absl::SimpleAtoi(range.front(), &first)) && 1 <= first &&
                  first <= last)
          << "WEFT_SEEDS=" << seeds << " is neither N nor A-B";
    }
    int tried = 0, faults = 0;
    for (int round = 4 * (first - 1); round < (all ? 4 * last : 1); ++round) {
      for (int step = 1; step <= static_cast<int>(steps.size()); step += all ? 1 : kStride) {
        const int kind = all ? round : tried;
        const Fault fault{step, kind % 2 == 0, kind % 4 < 2 ? 0 : 1 + round * 1000 + step};
        const std::string folder = absl::StrCat(folder_ / "fault", round, "-", step);
        SCOPED_TRACE(absl::StrCat(fault.before ? "before " : "behind ", steps[step - 1],
                                  fault.seed > 0 ? ", without power" : "", ", seed ", fault.seed));
        fs::create_directories(folder);
        ++tried;
        if (disturb(fault, folder)) ++faults;
        if (HasFailure()) {
          std::cout << "the durable steps until then:\n" << ReadWholeFile(folder + ".log");
          return;
        }
        fs::remove_all(folder);
      }
    }
    std::cout << faults << " faults at " << steps.size() << " durable steps\n";
    // Commits gather, so a later step may not come again.
    EXPECT_GE(faults * 2, tried);
  }

  static constexpr int kStride = 9;        // of the steps that are taken without WEFT_SEEDS
  static constexpr int kUnavailable = 69;  // exit code of a client that finds no coordinator

  std::string file_;
};

TEST_F(DurableSteps, CoordinatorEndsAtEach_KeepsWhatItAcknowledged) {
  constexpr size_t kRuns = 3;
  file_ = WriteRun("{1f1b: {}}", 4, {{"checkpoint", "{every: 2}"}});
  TrainReference(file_);
  // It says more in many rounds than a pipe holds that nobody reads, and would stop there.
  std::vector<std::string> logged = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>" + (folder_ / "worker.log")};
  for (const std::string& word : Worker()) logged.push_back(word);
  const Command worker(logged);
  Sweep([&](const Fault& fault, const std::string& folder) {
    Supervised coordinator(Coordinator(folder), folder, fault, "listening on");
    std::vector<std::string> numbers;
    for (size_t run = 0; run < kRuns; ++run)
      numbers.push_back(SubmitPatiently(absl::StrCat(folder, "/out", run)));
    for (size_t run = 0; run < kRuns && !HasFailure(); ++run)
      ExpectRun(numbers[run], absl::StrCat(folder, "/out", run));
    CommandResult list;
    EXPECT_TRUE(Eventually([&] { return (list = Weft({"ls", "-o", "json"})).code != kUnavailable; }));
    const Json runs = Json::parse(list.out, nullptr, false);
    EXPECT_EQ(runs.size(), kRuns) << runs;
    for (const Json& run : runs) EXPECT_EQ(run["state"], "finished") << run;
    return coordinator.Stop(kSeconds);
  });
}

// The slices of a sharded run are joined by the one that seals.
TEST_F(DurableSteps, WorkerEndsAtEach_EachCheckpointThatCanBeSeenIsWhole) {
  file_ = WriteRun("{fsdp: {}}", 6, {{"checkpoint", "{every: 2}"}});
  TrainReference(file_);
  Sweep([&](const Fault& fault, const std::string& folder) {
    const std::string out = folder + "/out";
    const auto expect_whole = [&out] {
      const CommandResult audit = Command::Run({"weft", "checkpoint", "verify", out, "-o", "json"});
      if (audit.out.empty()) return;  // there is no complete one
      const Json audited = Json::parse(audit.out);
      for (const Json& checkpoint : audited["checkpoints"]) {
        if (checkpoint["state"] == "partial") continue;
        EXPECT_EQ(checkpoint["damages"], Json::array()) << checkpoint;
      }
    };
    Command coordinator(Coordinator(folder));
    Supervised worker(Worker(), folder, fault, "joined as", expect_whole);
    ExpectRun(SubmitPatiently(out), out);
    expect_whole();
    const bool came = worker.Stop(kSeconds);
    coordinator.Signal(SIGTERM);
    EXPECT_EQ(coordinator.Wait(kSeconds).code, 0);
    return came;
  });
}

}  // namespace
}  // namespace weft::durable_steps_test
