#include "coordinator/shell/planner_thread.h"

#include <utility>

namespace weft {

PlannerThread::PlannerThread(Planner planner) : planner_(std::move(planner)), thread_([this] { Run(); }) {}

PlannerThread::~PlannerThread() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mu_);
  for (Request& r : waiting_) r.done(absl::UnavailableError("the coordinator has stopped"));
}

bool PlannerThread::Plan(std::string spec, Done done) {
  absl::MutexLock lock(&mu_);
  if (waiting_.size() >= kMostWaiting) return false;
  waiting_.push_back({std::move(spec), std::move(done)});
  return true;
}

void PlannerThread::Run() {
  for (;;) {
    Request request;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &PlannerThread::Awake));
      if (stopping_) return;
      request = std::move(waiting_.front());
      waiting_.pop_front();
    }
    request.done(planner_(request.spec));
  }
}

}  // namespace weft
