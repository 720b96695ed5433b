#include "coordinator/shell/planner_thread.h"

#include <utility>

namespace weft {

PlannerThread::PlannerThread(Planner planner) : planner_(std::move(planner)), thread_([this] { Run(); }) {}

PlannerThread::~PlannerThread() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.Signal();
  thread_.join();
  MutexLock lock(mu_);
  for (Request& r : waiting_) r.done(absl::UnavailableError("the coordinator has stopped"));
}

bool PlannerThread::Plan(std::string spec, Done done) {
  MutexLock lock(mu_);
  if (waiting_.size() >= kMostWaiting) return false;
  waiting_.push_back({std::move(spec), std::move(done)});
  wake_.Signal();
  return true;
}

void PlannerThread::Run() {
  for (;;) {
    Request request;
    {
      MutexLock lock(mu_);
      while (!stopping_ && waiting_.empty()) wake_.Wait(mu_);
      if (stopping_) return;
      request = std::move(waiting_.front());
      waiting_.pop_front();
    }
    request.done(planner_(request.spec));
  }
}

}  // namespace weft
