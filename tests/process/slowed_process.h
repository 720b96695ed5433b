// Takes a part of its processor time from a process, for tests of ranks that are slower than others.
//
// By a quota of a control group (version 2, or the cpu controller of version 1) where this process may make
// one; else by a thread that stops the process for that part of the time (SIGSTOP, SIGCONT), which it says
// loudly. Either acts within a few milliseconds, so that every job of some milliseconds feels it.
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
#include <string>
#include <thread>

namespace weft {

class SlowedProcess {
 public:
  // Leaves it `share` of one core, below 1.
  SlowedProcess(pid_t pid, double share) : pid_(pid) {
    const int quota = static_cast<int>(share * kPeriodUs);
    const std::string name = "/weft_slow_" + std::to_string(pid);
    group_ = "/sys/fs/cgroup/cpu" + name;
    if (Make() && Write("cpu.cfs_period_us", std::to_string(kPeriodUs)) &&
        Write("cpu.cfs_quota_us", std::to_string(quota)) && Write("cgroup.procs", std::to_string(pid)))
      return;
    Remove();
    group_ = "/sys/fs/cgroup" + name;
    if (Make() && Write("cpu.max", std::to_string(quota) + " " + std::to_string(kPeriodUs)) &&
        Write("cgroup.procs", std::to_string(pid)))
      return;
    Remove();
    std::cout << "NO CONTROL GROUP with a quota can be made here (" << group_ << "): process " << pid
              << " is slowed by SIGSTOP and SIGCONT in its place\n";
    thread_ = std::thread([this, quota] {
      while (!ends_) {
        kill(pid_, SIGSTOP);
        usleep(kPeriodUs - quota);
        kill(pid_, SIGCONT);
        usleep(quota);
      }
    });
  }
  ~SlowedProcess() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
    Remove();
  }
  SlowedProcess(const SlowedProcess&) = delete;
  SlowedProcess& operator=(const SlowedProcess&) = delete;

  bool by_quota() const { return !group_.empty(); }

 private:
  static constexpr int kPeriodUs = 8000;

  bool Make() const { return mkdir(group_.c_str(), 0755) == 0; }
  bool Write(const std::string& file, const std::string& text) const {
    std::ofstream out(group_ + "/" + file);
    out << text << std::flush;
    return static_cast<bool>(out);
  }
  // A group with a process in it stays until that has gone elsewhere.
  void Remove() {
    if (group_.empty()) return;
    const std::string above = std::filesystem::path(group_).parent_path().string();
    std::ofstream(above + "/cgroup.procs") << pid_ << std::flush;
    rmdir(group_.c_str());
    group_.clear();
  }

  const pid_t pid_;
  std::string group_;  // "" where there is none
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_SLOWED_PROCESS_H_
