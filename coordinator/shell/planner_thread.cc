#include "coordinator/shell/planner_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace weft {

PlannerThread::PlannerThread(Planner planner) : planner_(std::move(planner)) {
  thread_ = StartThread([this] { ReadAll(); });
  slow_thread_ = StartThread([this] { PlanSlowOnes(); });
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

void PlannerThread::PutAside(Request request) {
  {
    MutexLock lock(mu_);
    if (slow_.size() < kMaxSlowWaiting) {
      slow_.push_back(std::move(request));
      wake_.SignalAll();
      return;
    }
  }
  request.done(absl::ResourceExhaustedError(
      absl::StrCat(kMaxSlowWaiting, " other runs of this size wait to be planned; try again later")));
}

void PlannerThread::ReadAll() {
  Request request;
  while (Take(&waiting_, &request)) {
    absl::StatusOr<UnplannedRun> run = planner_(request.spec);
    if (!run.ok()) {
      request.done(run.status());
    } else if (!run->slow) {
      request.done(run->plan());
    } else {
      request.run = *std::move(run);
      PutAside(std::move(request));
    }
  }
}

void PlannerThread::PlanSlowOnes() {
  Request request;
  while (Take(&slow_, &request)) request.done(request.run.plan());
}

}  // namespace weft
