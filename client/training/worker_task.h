// Runs one task of a `weft-worker` process for this client: starts it with a run's specification, reads it
// line by line until its end, and stops it by the person's signals.
//
// Use it on the main thread. Destruction ends the process.
#ifndef WEFT_CLIENT_TRAINING_WORKER_TASK_H_
#define WEFT_CLIENT_TRAINING_WORKER_TASK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/training/child_process.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"

namespace weft {

class WorkerTask {
 public:
  // Starts the worker. `flag` is the flag with which it takes the specification's file, as "--reference".
  // Failure: NotFound, Unavailable, ResourceExhausted.
  absl::Status Start(const std::string& flag, const RunSpec& spec,
                     const std::vector<std::string>& further_arguments);

  // Waits until the process has ended well. `on_line` gets each line of its output; `on_wait` is called
  // between, at least four times a second. Failure: that of `on_line`; Cancelled, naming the signal, when the
  // person stops it; Internal when the process fails, in whose own words PrintLastWords says more.
  absl::Status Watch(const std::function<absl::Status(const nlohmann::json&)>& on_line,
                     const std::function<void()>& on_wait);

  // Sets the answer to the first stop signal. If `ask` returns a number of seconds, the process is told to
  // stop by itself, with SIGTERM, and has so long. If it returns none, or at a second signal, the process is
  // killed.
  void StopBy(std::function<std::optional<double>()> ask) { ask_ = std::move(ask); }

  void PrintLastWords();
  // Returns what the process reported of its device, once; else empty.
  std::string TakeDevice();
  // Returns the exit code of the process; -1 if it has none.
  int code() const { return process_ == nullptr ? -1 : process_->code(); }

 private:
  absl::Status TakeLines(const std::function<absl::Status(const nlohmann::json&)>& on_line);

  StopSignals signals_;
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<ChildProcess> process_;
  std::string lines_;
  std::function<std::optional<double>()> ask_;
  bool device_taken_ = false;
};

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_WORKER_TASK_H_
