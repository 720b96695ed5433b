#include "worker/shell/loop/loop_events.h"

#include <variant>

#include "proto/session/job_event.h"

namespace weft {
namespace {

void AddDoing(const WorkThreads::Doing& doing, EventText& text) {
  text.Add("rank", doing.rank);
  doing.job.has_value() ? AddJob(*doing.job, text) : (void)text.AddText("task", doing.word);
}

void AddFailure(const absl::Status& status, EventText& text) {
  if (!status.ok()) text.AddText("err", status.message());
}

}  // namespace

void LoopEvents::TaskBegins(int64_t now, const WorkThreads::Doing& doing) const {
  if (ring_ == nullptr) return;
  EventText text(doing.job.has_value() ? "job_begins" : "task_begins");
  AddDoing(doing, text);
  ring_->Note(now, text);
}

void LoopEvents::PartEnds(int64_t now, const WorkThreads::Doing& doing) const {
  if (ring_ == nullptr) return;
  EventText text("task_ends");
  AddDoing(doing, text);
  ring_->Note(now, text);
}

void LoopEvents::JobEnds(int64_t now, Rank rank, const Job& job, const absl::Status& status,
                         bool launched) const {
  if (ring_ == nullptr) return;
  EventText text(!status.ok() ? "job_fails" : launched ? "job_launched" : "job_ends");
  text.Add("rank", rank);
  AddJob(job, text);
  AddFailure(status, text);
  ring_->Note(now, text);
}

void LoopEvents::DoneOnDevice(int64_t now, Rank rank, const Job& job, const absl::Status& status) const {
  if (ring_ == nullptr) return;
  EventText text(status.ok() ? "job_done_on_device" : "job_fails_on_device");
  text.Add("rank", rank);
  AddJob(job, text);
  AddFailure(status, text);
  ring_->Note(now, text);
}

void LoopEvents::Note(int64_t now, absl::string_view event, int process, const TensorKey& key) const {
  if (ring_ == nullptr) return;
  EventText text(event);
  text.Add("process", process).AddWord("tensor", TensorKindName(key.kind)).Add("step", key.step);
  text.Add("stage", key.stage).Add("microbatch", key.microbatch).Add("part", key.part);
  text.Add("producer", key.producer).Add("consumer", key.consumer);
  ring_->Note(now, text);
}

void LoopEvents::Received(int64_t now, const FromCoordinator& message) const {
  const auto* grant = std::get_if<Grant>(&message);
  if (ring_ == nullptr || grant == nullptr) return;
  EventText text("granted");
  text.Add("run", static_cast<int64_t>(grant->run)).Add("rank", grant->rank);
  text.Add("jobs", static_cast<int64_t>(grant->jobs.size()));
  if (!grant->jobs.empty()) AddJob(grant->jobs.back(), text);
  ring_->Note(now, text);
}

void LoopEvents::RunFails(int64_t now, uint64_t run, const absl::Status& status) const {
  if (ring_ != nullptr) {
    EventText text("run_fails");
    text.Add("run", static_cast<int64_t>(run));
    AddFailure(status, text);
    ring_->Note(now, text);
  }
  if (absl::IsDeadlineExceeded(status)) Stalls(now, std::string(status.message()));
}

void LoopEvents::Stalls(int64_t now, const std::string& why) const {
  if (ring_ != nullptr) ring_->Note(now, EventText("stall").AddText("why", why));
  if (stalled_) stalled_(why);
}

}  // namespace weft
