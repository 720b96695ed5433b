// Says how much of a processor a process gets, for tests of ranks that are slower than others.
//
// SlowedProcess leaves it a part of a core, by the quota of a control group (the cpu controller of version 1,
// or version 2) where this process may make one; else by a thread that stops the process for the rest of the
// time (SIGSTOP, SIGCONT), which it says loudly. FavouredProcess sets no bound. Both let the process go
// before those without a group, so that on a busy machine the quota decides who is slow, and not the
// neighbours; without control groups they cannot.
//
// The period of the quota is a few milliseconds. It stops the process, and not a job: the kernel
// looks at the quota on its ticks and when a thread begins to wait, so short jobs are mostly stopped between
// each other.
#ifndef WEFT_TESTS_PROCESS_SLOWED_PROCESS_H_
#define WEFT_TESTS_PROCESS_SLOWED_PROCESS_H_

#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

namespace weft {

// A control group of one process, with the greatest weight, and a quota if it has one. The process is given
// back when it ends.
class ControlGroup {
 public:
  static constexpr int kPeriodUs = 8000;

  ControlGroup(pid_t pid, const std::string& purpose, std::optional<int> quota_us) : pid_(pid) {
    const std::string name = "/weft_" + purpose + "_" + std::to_string(pid);
    const std::string old = "/sys/fs/cgroup/cpu", unified = "/sys/fs/cgroup";
    const std::string period = std::to_string(kPeriodUs);
    if (std::filesystem::exists(old + "/cpu.shares")) {
      made_ = Make(old + name) && Write("cpu.shares", "262144") &&
              (!quota_us.has_value() ||
               (Write("cpu.cfs_period_us", period) && Write("cpu.cfs_quota_us", std::to_string(*quota_us))));
    } else if (std::filesystem::exists(unified + "/cgroup.controllers")) {
      made_ = Make(unified + name) && Write("cpu.weight", "10000") &&
              (!quota_us.has_value() || Write("cpu.max", std::to_string(*quota_us) + " " + period));
    }
    made_ = made_ && Write("cgroup.procs", std::to_string(pid));
  }
  ~ControlGroup() {
    if (path_.empty()) return;
    // A group with a process in it stays until that has gone elsewhere.
    const std::string above = std::filesystem::path(path_).parent_path().string();
    std::ofstream(above + "/cgroup.procs") << pid_ << std::flush;
    rmdir(path_.c_str());
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  // Returns true if the process is in it.
  bool made() const { return made_; }

 private:
  bool Make(const std::string& path) {
    if (mkdir(path.c_str(), 0755) != 0) return false;
    path_ = path;
    return true;
  }
  bool Write(const std::string& file, const std::string& text) const {
    std::ofstream out(path_ + "/" + file);
    out << text << std::flush;
    return static_cast<bool>(out);
  }

  const pid_t pid_;
  std::string path_;  // "" where there is none
  bool made_ = false;
};

class SlowedProcess {
 public:
  // Leaves it `share` of one core, below 1.
  SlowedProcess(pid_t pid, double share)
      : pid_(pid),
        quota_us_(static_cast<int>(share * ControlGroup::kPeriodUs)),
        group_(pid, "slow", quota_us_) {
    if (group_.made()) return;
    std::cout << "NO CONTROL GROUP with a quota of the processor can be made here: process " << pid
              << " is slowed by SIGSTOP and SIGCONT in its place\n";
    thread_ = std::thread([this] {
      while (!ends_) {
        kill(pid_, SIGSTOP);
        usleep(ControlGroup::kPeriodUs - quota_us_);
        kill(pid_, SIGCONT);
        usleep(quota_us_);
      }
    });
  }
  ~SlowedProcess() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  SlowedProcess(const SlowedProcess&) = delete;
  SlowedProcess& operator=(const SlowedProcess&) = delete;

 private:
  const pid_t pid_;
  const int quota_us_;
  const ControlGroup group_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

class FavouredProcess {
 public:
  explicit FavouredProcess(pid_t pid) : group_(pid, "favoured", std::nullopt) {}

 private:
  const ControlGroup group_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_SLOWED_PROCESS_H_
