// Tells Kubeflow's Trainer how far a training is, where it has started this process: then three variables of
// the environment say where to, with which token, and whose certificate answers there.
//
// A thread of its own sends the newest state, at most every five seconds, so that nobody waits for the
// network. A state that cannot be sent does not fail the training: the first time, a warning says why, and
// the next state is tried.
//
// Threads: Tell from any; the destructor sends the last state, and takes a few seconds where nobody answers.
#ifndef WEFT_CLIENT_KUBEFLOW_STATUS_REPORTER_H_
#define WEFT_CLIENT_KUBEFLOW_STATUS_REPORTER_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "client/console/progress_state.h"

namespace weft {

class StatusReporter {
 public:
  // Returns null where KUBEFLOW_TRAINER_STATUS_URL is not set.
  static std::unique_ptr<StatusReporter> FromEnvironment();
  ~StatusReporter();

  void Tell(const ProgressState& state);

 private:
  explicit StatusReporter(std::string url);

  void SendUntilOver();
  void Send(const ProgressState& state);
  double StepsPerSecond(const ProgressState& state);

  const std::string url_, authority_, token_file_;
  Mutex mutex_;
  std::optional<ProgressState> newest_ ABSL_GUARDED_BY(mutex_);  // that was not sent yet
  Notification over_;
  // Used by the thread alone.
  bool warned_ = false;
  double began_ = 0;  // seconds, when the first state with a step was sent
  int began_at_ = -1;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace weft

#endif  // WEFT_CLIENT_KUBEFLOW_STATUS_REPORTER_H_
