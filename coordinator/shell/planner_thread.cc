#include "coordinator/shell/planner_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace weft {

PlannerThread::PlannerThread(Planner planner, std::function<bool(const std::string&)> slowly)
    : planner_(std::move(planner)), slowly_(std::move(slowly)) {
  thread_ = StartThread([this] { Run(&waiting_, /*sorts=*/slowly_ != nullptr); });
  slow_thread_ = StartThread([this] { Run(&slow_, /*sorts=*/false); });
}

PlannerThread::~PlannerThread() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.SignalAll();
  thread_.join();
  slow_thread_.join();
  MutexLock lock(mu_);
  for (std::deque<Request>* requests : {&waiting_, &slow_}) {
    for (Request& r : *requests) r.done(absl::UnavailableError("the coordinator has stopped"));
  }
}

bool PlannerThread::Plan(std::string spec, Done done) {
  MutexLock lock(mu_);
  if (waiting_.size() >= kMaxWaiting) return false;
  waiting_.push_back({std::move(spec), std::move(done)});
  wake_.SignalAll();
  return true;
}

bool PlannerThread::Take(std::deque<Request>* waiting, Request* request) {
  MutexLock lock(mu_);
  while (!stopping_ && waiting->empty()) wake_.Wait(mu_);
  if (stopping_) return false;
  *request = std::move(waiting->front());
  waiting->pop_front();
  return true;
}

bool PlannerThread::PutAside(Request* request) {
  if (!slowly_(request->spec)) return false;
  {
    MutexLock lock(mu_);
    if (slow_.size() < kMaxSlowWaiting) {
      slow_.push_back(std::move(*request));
      wake_.SignalAll();
      return true;
    }
  }
  request->done(absl::ResourceExhaustedError(
      absl::StrCat(kMaxSlowWaiting, " other runs of this size wait to be planned; try again later")));
  return true;
}

void PlannerThread::Run(std::deque<Request>* waiting, bool sorts) {
  Request request;
  while (Take(waiting, &request)) {
    if (sorts && PutAside(&request)) continue;
    request.done(planner_(request.spec));
  }
}

}  // namespace weft
