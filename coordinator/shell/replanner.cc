#include "coordinator/shell/replanner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/monotonic_clock.h"
#include "base/threads.h"
#include "coordinator/replanning/left_links.h"
#include "coordinator/shell/spec_planner.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"

namespace weft {
namespace {

constexpr int64_t kMaxSearchNs = 3'000'000'000;
constexpr int64_t kBetweenAsksNs = 1'000'000'000;

}  // namespace

Replanner::Replanner(Post post, Move move, Ask ask)
    : post_(std::move(post)), move_(std::move(move)), ask_(std::move(ask)) {}

Replanner::~Replanner() {
  stopping_ = true;
  requests_.Stop();
  if (thread_.joinable()) thread_.join();
}

void Replanner::Add(uint64_t run, const RunPlan& plan) {
  if (plan.spec == nullptr || !plan.spec->replan.any() || plan.resumed_spec == nullptr) return;
  watches_.try_emplace(run, Watched{ReplanWatch(plan.spec, plan.ranks())});
  if (!thread_.joinable()) thread_ = StartThread([this] { Search(); });
}

// Links that cannot be read count as none: the run finds out again.
void Replanner::Add(const RestoreRun& restored) {
  if (restored.plan == nullptr) return;
  const StoredRun& stored = restored.stored;
  Add(stored.submission.run, *restored.plan);
  const auto watch = watches_.find(stored.submission.run);
  if (watch == watches_.end() || !stored.under_way()) return;
  absl::StatusOr<RankLinks> left = ReadLeftLinks(stored.attempt.left_links, restored.plan->ranks());
  if (left.ok()) watch->second.watch.Restore(stored.figures.info.restarts, *std::move(left));
}

void Replanner::Hear(const JobsEnded& jobs) {
  const auto watch = watches_.find(jobs.run);
  if (watch == watches_.end()) return;
  for (const Completion& done : jobs.jobs) {
    const int64_t took_ns = done.end_ns - done.start_ns + done.delay_ns;
    watch->second.watch.JobEnded(jobs.rank, done.job, static_cast<double>(took_ns) * 1e-9);
  }
}

void Replanner::Hear(const StepDone& step) {
  const auto watch = watches_.find(step.run);
  if (watch == watches_.end()) return;
  std::optional<WindowQuestion> question = watch->second.watch.StepEnded(step.step);
  if (!question.has_value()) return;
  AskTransfers(step.run, &watch->second);  // for the next question
  Request request{step.run, *std::move(question)};
  requests_.Add(request);
}

void Replanner::AskTransfers(uint64_t run, Watched* watched) {
  const int64_t now = MonotonicNow();
  if (!watched->spread || watched->asking || now < watched->ask_again) return;
  watched->asking = true;
  watched->ask_again = now + kBetweenAsksNs;
  const auto told = [this, run] {
    if (const auto watch = watches_.find(run); watch != watches_.end()) watch->second.asking = false;
  };
  post_([this, run, told] { ask_(run, told); });
}

void Replanner::Hear(const Spans& spans) {
  const auto watch = watches_.find(spans.run);
  if (watch == watches_.end()) return;
  for (const Spans::OfRank& of_rank : spans.ranks) {
    std::map<std::pair<Rank, TransferKey>, int32_t> counts;  // of equal keys but for the index
    for (const TransferSpan& span : of_rank.transfers) {
      TransferKey key{span.tensor, span.consumer};
      key.index = counts[{span.from, key}]++;
      if (span.made_ns == 0) continue;  // when it could leave is not known
      const int64_t start_ns = std::max(span.wanted_ns, span.made_ns);
      watch->second.watch.TensorArrived(
          span.from, of_rank.rank, key,
          {static_cast<double>(start_ns) * 1e-9, static_cast<double>(span.arrived_ns) * 1e-9, span.bytes});
    }
  }
}

void Replanner::Hear(const RunInfo& run) {
  const auto watch = watches_.find(run.id);
  if (watch == watches_.end()) return;
  if (IsFinal(run.state)) {
    watches_.erase(watch);
  } else if (run.state == RunState::kRunning) {
    watch->second.spread = run.processes > 1;
    watch->second.watch.Began(run.restarts);
  }
}

void Replanner::Hear(const Replanned& replanned) {
  const auto watch = watches_.find(replanned.run);
  if (watch != watches_.end()) watch->second.watch.Replanned(replanned.plan->spec, replanned.step);
}

void Replanner::Search() {
  while (const std::optional<Request> request = requests_.Take()) {
    const auto found = std::make_shared<Found>(Answer(*request));
    post_([this, run = request->run, found] { Take(run, std::move(*found)); });
  }
}

// Makes the plan as well, because that simulates and checks.
Replanner::Found Replanner::Answer(const Request& request) const {
  const int64_t end = MonotonicNow() + kMaxSearchNs;
  Found found{AnswerOf(request.question, [this, end] { return stopping_ || MonotonicNow() >= end; }), {}};
  if (!found.answer.ok() || found.answer->better.gain() <= request.question.run->replan.gain) return found;
  RunSpec spec = *request.question.run;
  spec.schedule = found.answer->better.schedule;
  absl::StatusOr<RunSchedule> schedule = ScheduleOf(spec);
  absl::StatusOr<std::shared_ptr<const RunPlan>> plan =
      schedule.ok() ? PlanRun(spec, *std::move(schedule)) : schedule.status();
  if (!plan.ok()) {
    found.answer = plan.status();
    return found;
  }
  found.replan = {request.run,
                  found.answer->restarts,
                  *std::move(plan),
                  ToJson(spec).dump(),
                  ToJson(spec.schedule).dump(),
                  Sentence(found.answer->better, found.answer->measured, found.answer->links.slow),
                  found.answer->better.slow_links ? LeftLinksText(found.answer->links) : ""};
  return found;
}

void Replanner::Take(uint64_t run, Found found) {
  const auto watch = watches_.find(run);
  if (watch != watches_.end() && watch->second.watch.Take(found.answer)) move_(std::move(found.replan));
}

}  // namespace weft
