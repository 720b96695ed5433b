// Makes run plans off the loop's thread: parsing a run file and simulating its schedule may take long, and
// jobs of other runs go on.
//
// Two threads. The first reads every request, makes the plan of those that are quick and hands the others to
// the second, so that a run with a million jobs holds back only its like. Each makes one plan at a time. At
// most kMaxWaiting requests wait (Plan returns false then), and kMaxSlowWaiting slow ones (their answer is
// ResourceExhausted). Destruction answers waiting requests with Unavailable.
#ifndef WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
#define WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/shell/request_queue.h"
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
  // Hands the request to the second thread, or refuses it where too many wait there.
  void PutAside(Request request);

  const Planner planner_;
  RequestQueue<Request> waiting_{kMaxWaiting}, slow_{kMaxSlowWaiting};
  std::thread thread_, slow_thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
