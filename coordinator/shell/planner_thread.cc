#include "coordinator/shell/planner_thread.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace weft {

PlannerThread::PlannerThread(Planner planner) : planner_(std::move(planner)) {
  thread_ = StartThread([this] { ReadAll(); });
  slow_thread_ = StartThread([this] { PlanSlowOnes(); });
}

PlannerThread::~PlannerThread() {
  for (RequestQueue<Request>* requests : {&waiting_, &slow_}) requests->Stop();
  thread_.join();
  slow_thread_.join();
  for (RequestQueue<Request>* requests : {&waiting_, &slow_}) {
    for (Request& r : requests->TakeRest()) r.done(absl::UnavailableError("the coordinator has stopped"));
  }
}

bool PlannerThread::Plan(std::string spec, Done done) {
  Request request{std::move(spec), std::move(done)};
  return waiting_.Add(request);
}

void PlannerThread::PutAside(Request request) {
  if (slow_.Add(request)) return;
  request.done(absl::ResourceExhaustedError(
      absl::StrCat(kMaxSlowWaiting, " other runs of this size wait to be planned; try again later")));
}

void PlannerThread::ReadAll() {
  while (std::optional<Request> request = waiting_.Take()) {
    absl::StatusOr<UnplannedRun> run = planner_(request->spec);
    if (!run.ok()) {
      request->done(run.status());
    } else if (!run->slow) {
      request->done(run->plan());
    } else {
      request->run = *std::move(run);
      PutAside(*std::move(request));
    }
  }
}

void PlannerThread::PlanSlowOnes() {
  while (std::optional<Request> request = slow_.Take()) request->done(request->run.plan());
}

}  // namespace weft
