// Makes run plans off the loop's thread: parsing a run file and simulating its schedule may take long, and
// jobs of other runs go on.
//
// Two threads. The first reads every request, makes the plan of those that are quick and hands the others to
// the second, so that a run with a million jobs holds back only its like. Each makes one plan at a time. At
// most kMaxWaiting requests wait (Plan returns false then), and kMaxSlowWaiting slow ones (their answer is
// ResourceExhausted). Destruction answers waiting requests with Unavailable.
#ifndef WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
#define WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "coordinator/shell/server_options.h"

namespace weft {

class PlannerThread {
 public:
  static constexpr size_t kMaxWaiting = 64;
  static constexpr size_t kMaxSlowWaiting = 8;
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<const RunPlan>>)>;

  explicit PlannerThread(Planner planner);
  ~PlannerThread();

  // Plans a run. `done` is called once, on a thread of this object or in the destructor.
  bool Plan(std::string spec, Done done);

 private:
  struct Request {
    std::string spec;  // until it has been read
    Done done;
    UnplannedRun run = {};
  };
  void ReadAll();
  void PlanSlowOnes();
  // Waits for a request; returns false once it is to stop.
  bool Take(std::deque<Request>* waiting, Request* request);
  // Hands the request to the second thread, or refuses it where too many wait there.
  void PutAside(Request request);

  const Planner planner_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mu_);
  std::deque<Request> slow_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_, slow_thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
