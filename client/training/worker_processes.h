// Runs the worker processes of a training on this machine: starts them together, watches them, stops them
// together.
//
// One thread, the main one (child_process.h). Destruction kills processes that still run.
#ifndef WEFT_CLIENT_TRAINING_WORKER_PROCESSES_H_
#define WEFT_CLIENT_TRAINING_WORKER_PROCESSES_H_

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/training/child_process.h"
#include "client/training/stop_signals.h"

namespace weft {

class WorkerProcesses {
 public:
  // Starts `count` times the program `weft-worker` that lies beside this one. NotFound, ResourceExhausted.
  // `further_arguments` go to each. `metrics` returns where process i serves its metrics, HOST:PORT; empty
  // for nowhere.
  absl::Status Start(int count, const std::string& coordinator,
                     const std::vector<std::string>& further_arguments = {},
                     const std::function<std::string(int)>& metrics = nullptr);
  // Starts the process of this number, also in the place of one that has ended. Requires Start.
  // ResourceExhausted.
  absl::Status StartOne(int number);

  // See ChildProcess.
  void AddTo(std::vector<pollfd>* descriptors) const;

  struct Ended {
    int number;  // from 0 on
    pid_t pid;
    int code;               // exit code; -1 if a signal ended it
    std::string last_line;  // its last line on standard error that is more than information
    // "was killed by SIGKILL", "exited with code 1: cannot read .."; with a hint where the kernel has killed
    // processes for want of memory meanwhile.
    std::string how;
    std::string wrote;  // lines before `last_line` that are more than information, "a | b"
  };
  // Returns the processes that ended since the last call.
  std::vector<Ended> Poll();
  bool any_running() const;
  // Returns what processes reported of their devices since the last call; if several report the same, the
  // first.
  std::vector<std::string> TakeDevices();
  // Returns what processes have said since the last call of ranks and stages that run without CUDA graphs.
  std::vector<std::string> TakeLinesAboutGraphs();

  // Asks all to end but these.
  void EndOthers(const std::set<pid_t>& kept) const;
  // Waits until all have ended, at most that long.
  void WaitForEnd(double seconds);
  // Asks them to end, waits at most that long, kills the rest. A further stop signal ends the waiting.
  void Stop(double grace_seconds, StopSignals* signals);

  // Returns the last words of the processes that failed, or of all of them if none failed: for a person who
  // looks for the cause.
  std::string LastWords() const;

 private:
  // Returns true if all ended in time and no signal came.
  bool AwaitEnd(double seconds, StopSignals* signals);

  std::string program_, coordinator_;
  std::vector<std::string> further_arguments_;
  std::function<std::string(int)> metrics_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;  // all that were started, in order
  std::vector<int> numbers_;                              // of these
  std::vector<bool> reported_;                            // true for processes whose end Poll has returned
  std::vector<bool> device_reported_;
  int64_t memory_kills_ = 0;            // kills by the kernel before these began
  std::set<std::string> devices_;       // devices that TakeDevices has returned
  std::set<std::string> about_graphs_;  // lines that TakeLinesAboutGraphs has returned
};

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_WORKER_PROCESSES_H_
