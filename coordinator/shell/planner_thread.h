// Makes run plans off the loop's thread: parsing a run file and simulating its schedule may take long, and
// jobs of other runs go on.
//
// One thread, one plan at a time, at most kMostWaiting waiting: Plan says false then. Destruction answers
// what waits with Unavailable.
#ifndef WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
#define WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "coordinator/shell/server_options.h"
#include "proto/wire/mutex.h"

namespace weft {

class PlannerThread {
 public:
  static constexpr size_t kMostWaiting = 64;
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<const RunPlan>>)>;

  explicit PlannerThread(Planner planner);
  ~PlannerThread();

  // `done` is called once, on this object's thread or in the destructor.
  bool Plan(std::string spec, Done done);

 private:
  struct Request {
    std::string spec;
    Done done;
  };
  void Run();

  const Planner planner_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_PLANNER_THREAD_H_
