#include "proto/wire/runs_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft::wire {
namespace {

// Checks what a run says of its size and place.
absl::Status CheckRun(const v1::Run& in) {
  if (in.state() < v1::RUN_STATE_SUBMITTED || in.state() > v1::RUN_STATE_CANCELLED) {
    return absl::InvalidArgumentError(
        absl::StrCat("run.state ", static_cast<int>(in.state()), " is not known"));
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.name", in.name(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.schedule", in.schedule(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.reason", in.reason(), 4 * kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.reduction", in.reduction(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.ranks", in.ranks(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.processes", in.processes(), kMaxProcesses));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.steps", in.steps(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.steps_done", in.steps_done(), in.steps()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of run.reports", in.reports_size(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.output", in.output(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.file", in.file(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of run.members", in.members_size(), kMaxProcesses));
  for (const std::string& member : in.members()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.members", member, kMaxTextBytes));
  }
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of run.member_of_rank", in.member_of_rank_size(), kMaxRanks));
  for (const uint32_t member : in.member_of_rank()) {
    if (member >= static_cast<uint32_t>(in.members_size()))
      return absl::InvalidArgumentError(
          absl::StrCat("run.member_of_rank names member ", member, " of ", in.members_size()));
  }
  return absl::OkStatus();
}

// Takes what a run says of its restarts, with its checks.
absl::Status TakeRestarts(const v1::Run& in, RunInfo* run) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.restarts", in.restarts(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.restart_step", in.restart_step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.restart_reason", in.restart_reason(), 4 * kMaxTextBytes));
  run->restarts = static_cast<int32_t>(in.restarts());
  run->restart_step = static_cast<int32_t>(in.restart_step());
  run->restart_reason = in.restart_reason();
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.non_finite_steps", in.non_finite_steps(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.non_finite_step", in.non_finite_step(), kMaxSteps));
  run->non_finite_steps = static_cast<int32_t>(in.non_finite_steps());
  if (in.has_non_finite_step()) run->non_finite_step = static_cast<int32_t>(in.non_finite_step());
  if (in.recovery_ns().empty()) return absl::OkStatus();
  if (in.recovery_ns_size() != kRecoveryPhases)
    return absl::InvalidArgumentError(absl::StrCat("run.recovery_ns has ", in.recovery_ns_size(),
                                                   " times, but must have ", kRecoveryPhases));
  run->recovery_ns.emplace();
  std::copy(in.recovery_ns().begin(), in.recovery_ns().end(), run->recovery_ns->begin());
  return absl::OkStatus();
}

// Takes a run's checkpoints and validations, with their checks.
absl::Status TakeCheckpoints(const v1::Run& in, RunInfo* run) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.checkpoint_step", in.checkpoint_step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.checkpoint_failure", in.checkpoint_failure(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.failed_checkpoints", in.failed_checkpoints(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.stop_step", in.stop_step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("run.validation_failure", in.validation_failure(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("run.failed_validations", in.failed_validations(), kMaxSteps));
  if (in.has_checkpoint_step()) run->checkpoint_step = static_cast<int32_t>(in.checkpoint_step());
  run->checkpoint_failure = in.checkpoint_failure();
  run->failed_checkpoints = static_cast<int32_t>(in.failed_checkpoints());
  if (in.has_stop_step()) run->stop_step = static_cast<int32_t>(in.stop_step());
  run->validation_failure = in.validation_failure();
  run->failed_validations = static_cast<int32_t>(in.failed_validations());
  if (!in.has_validation()) return absl::OkStatus();
  absl::StatusOr<Validation> validation = Decode(in.validation());
  if (!validation.ok()) return validation.status();
  run->validation = *std::move(validation);
  return absl::OkStatus();
}

}  // namespace

void Encode(const SubmitRequest& request, v1::SubmitRequest* out) {
  out->set_request(request.request);
  out->set_spec(request.spec);
  out->set_processes(request.processes);
  out->set_output(request.output);
  out->set_overwrite(request.overwrite);
  out->set_file(request.file);
  out->set_priority(request.terms.priority);
  out->set_pool(request.terms.pool);
}

absl::StatusOr<SubmitRequest> Decode(const v1::SubmitRequest& in) {
  if (!in.request().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("request", in.request()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("spec", in.spec(), kMaxSpecBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("output", in.output(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("processes", in.processes(), kMaxProcesses));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("file", in.file(), kMaxTextBytes));
  if (!in.pool().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("pool", in.pool()));
  if (in.priority() < -QueueTerms::kMaxPriority || in.priority() > QueueTerms::kMaxPriority) {
    return absl::InvalidArgumentError(absl::StrCat("priority is ", in.priority(), "; it goes from -",
                                                   QueueTerms::kMaxPriority, " to ",
                                                   QueueTerms::kMaxPriority));
  }
  return SubmitRequest{in.request(),
                       in.spec(),
                       static_cast<int32_t>(in.processes()),
                       in.output(),
                       in.overwrite(),
                       CleanText(in.file(), kMaxTextBytes),
                       {in.priority(), in.pool(), ""}};
}

void Encode(const MoveRequest& request, v1::MoveRequest* out) {
  out->set_run(request.run);
  out->mutable_ranks()->Assign(request.ranks.begin(), request.ranks.end());
  out->set_worker(request.worker);
  out->set_reason(request.reason);
}

absl::StatusOr<MoveRequest> Decode(const v1::MoveRequest& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("worker", in.worker()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of ranks", in.ranks_size(), kMaxRanks));
  MoveRequest request{in.run(), {}, in.worker(), in.reason()};
  for (const uint32_t rank : in.ranks()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks", rank, kMaxRanks - 1));
    request.ranks.push_back(static_cast<Rank>(rank));
  }
  return request;
}

void Encode(const RunInfo& run, int64_t unix_minus_monotonic_ns, v1::Run* out) {
  const auto wall = [&](int64_t ns) { return ns == 0 ? 0 : ns + unix_minus_monotonic_ns; };
  out->set_id(run.id);
  out->set_name(CleanText(run.name, kMaxTextBytes));
  out->set_schedule(PlainText(run.schedule, kMaxTextBytes));
  out->set_state(static_cast<v1::RunState>(static_cast<int>(run.state) + 1));
  out->set_reason(PlainText(run.reason, kMaxTextBytes));
  out->set_reduction(CleanText(run.reduction, kMaxTextBytes));
  out->set_ranks(run.ranks);
  out->set_processes(run.processes);
  out->set_steps(run.steps);
  out->set_steps_done(run.steps_done);
  if (run.has_loss) out->set_loss(run.loss);
  out->set_submitted_ns(wall(run.submitted_ns));
  out->set_started_ns(wall(run.started_ns));
  out->set_ended_ns(wall(run.ended_ns));
  for (const RankReport& r : run.reports) Encode(r, out->add_reports());
  out->set_output(CleanText(run.output, kMaxTextBytes));
  if (run.output_closed.has_value()) out->set_output_closed(*run.output_closed);
  out->set_output_failure(CleanText(run.output_failure, kMaxTextBytes));
  out->set_file(CleanText(run.file, kMaxTextBytes));
  for (const std::string& member : run.members) out->add_members(CleanText(member, kMaxTextBytes));
  out->mutable_member_of_rank()->Assign(run.member_of_rank.begin(), run.member_of_rank.end());
  if (run.checkpoint_step >= 0) out->set_checkpoint_step(run.checkpoint_step);
  out->set_checkpoint_failure(CleanText(run.checkpoint_failure, kMaxTextBytes));
  out->set_failed_checkpoints(run.failed_checkpoints);
  if (run.stop_step >= 0) out->set_stop_step(run.stop_step);
  if (run.validation.has_value()) Encode(*run.validation, out->mutable_validation());
  out->set_validation_failure(CleanText(run.validation_failure, kMaxTextBytes));
  out->set_failed_validations(run.failed_validations);
  out->set_restarts(run.restarts);
  out->set_priority(run.terms.priority);
  out->set_pool(run.terms.pool);
  out->set_owner(CleanText(run.terms.owner, kMaxTextBytes));
  out->set_run_id(CleanText(run.run_id, kMaxTextBytes));
  out->set_restart_step(run.restart_step);
  out->set_restart_reason(PlainText(run.restart_reason, kMaxTextBytes));
  out->set_non_finite_steps(run.non_finite_steps);
  if (run.non_finite_step >= 0) out->set_non_finite_step(run.non_finite_step);
  if (run.recovery_ns.has_value())
    out->mutable_recovery_ns()->Add(run.recovery_ns->begin(), run.recovery_ns->end());
}

absl::StatusOr<RunInfo> Decode(const v1::Run& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckRun(in));
  RunInfo run;
  run.members.assign(in.members().begin(), in.members().end());
  run.member_of_rank.assign(in.member_of_rank().begin(), in.member_of_rank().end());
  run.output = in.output();
  if (in.has_output_closed()) run.output_closed = in.output_closed();
  run.output_failure = CleanText(in.output_failure(), kMaxTextBytes);
  run.file = in.file();
  run.id = in.id();
  run.run_id = CleanText(in.run_id(), kMaxTextBytes);
  run.name = in.name();
  run.schedule = in.schedule();
  run.state = static_cast<RunState>(static_cast<int>(in.state()) - 1);
  run.reason = in.reason();
  run.reduction = in.reduction();
  run.terms = {in.priority(), CleanText(in.pool(), kMaxTextBytes), CleanText(in.owner(), kMaxTextBytes)};
  run.ranks = static_cast<int32_t>(in.ranks());
  run.processes = static_cast<int32_t>(in.processes());
  run.steps = static_cast<int32_t>(in.steps());
  run.steps_done = static_cast<int32_t>(in.steps_done());
  run.has_loss = in.has_loss();
  run.loss = in.loss();
  WEFT_WIRE_RETURN_IF_ERROR(TakeCheckpoints(in, &run));
  WEFT_WIRE_RETURN_IF_ERROR(TakeRestarts(in, &run));
  run.submitted_ns = in.submitted_ns();
  run.started_ns = in.started_ns();
  run.ended_ns = in.ended_ns();
  for (const v1::RankReport& r : in.reports()) {
    absl::StatusOr<RankReport> report = Decode(r);
    if (!report.ok()) return report.status();
    run.reports.push_back(*std::move(report));
  }
  return run;
}

void Encode(const WorkerInfo& worker, v1::Worker* out) {
  out->set_process(worker.process);
  out->set_name(worker.name);
  out->set_host(PlainText(worker.host, kMaxTextBytes));
  out->set_pid(worker.pid);
  out->set_device(PlainText(worker.device, kMaxDeviceBytes));
  out->set_state(worker.state);
  out->set_run(worker.run);
  out->set_silent_ns(worker.silent_ns);
  out->set_pool(worker.pool);
  out->set_node(PlainText(worker.node, kMaxTextBytes));
  out->set_release(PlainText(worker.release, kMaxDeviceBytes));
  out->set_libraries(PlainText(worker.libraries, kMaxTextBytes));
  for (const WorkerInfo::JobInHand& in_hand : worker.jobs) {
    v1::JobInHand* o = out->add_jobs();
    o->set_rank(static_cast<uint32_t>(in_hand.rank));
    Encode(in_hand.job, o->mutable_job());
    o->set_age_ns(in_hand.age_ns);
  }
}

absl::StatusOr<WorkerInfo> Decode(const v1::Worker& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("worker.process", in.process(), kMaxProcesses));
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("worker.name", in.name()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("worker.state", in.state()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of worker.jobs", in.jobs_size(), kMaxRanks));
  WorkerInfo worker{static_cast<int32_t>(in.process()),
                    in.name(),
                    PlainText(in.host(), kMaxTextBytes),
                    in.pid(),
                    PlainText(in.device(), kMaxDeviceBytes),
                    in.state(),
                    in.run(),
                    in.silent_ns(),
                    CleanText(in.pool(), kMaxTextBytes),
                    PlainText(in.node().empty() ? in.host() : in.node(), kMaxTextBytes),
                    PlainText(in.release(), kMaxDeviceBytes),
                    PlainText(in.libraries(), kMaxTextBytes)};
  for (const v1::JobInHand& in_hand : in.jobs()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("jobs.rank", in_hand.rank(), kMaxRanks));
    const absl::StatusOr<Job> job = Decode(in_hand.job());
    if (!job.ok()) return job.status();
    worker.jobs.push_back({static_cast<Rank>(in_hand.rank()), *job, in_hand.age_ns()});
  }
  return worker;
}

absl::StatusOr<FleetInfo> Decode(const v1::ListWorkersResponse& in) {
  FleetInfo fleet = {{}, PlainText(in.release(), kMaxDeviceBytes), in.unix_ns()};
  for (const v1::Worker& w : in.workers()) {
    absl::StatusOr<WorkerInfo> worker = Decode(w);
    if (!worker.ok()) return worker.status();
    fleet.workers.push_back(*std::move(worker));
  }
  return fleet;
}

void Encode(const RunLogPart& part, v1::LogsResponse* out) {
  for (const RunLogLine& line : part.lines) {
    v1::RunLogLine* o = out->add_lines();
    o->set_number(line.number);
    Encode(line.entry, o->mutable_entry());
    if (line.process >= 0) o->set_process(static_cast<uint32_t>(line.process));
    o->set_writer(PlainText(line.writer, kMaxTextBytes));
    for (const Rank rank : line.ranks) o->add_ranks(static_cast<uint32_t>(rank));
  }
  out->set_last(part.last);
  out->set_dropped(part.dropped);
  out->set_more(part.more);
  out->set_ended(part.ended);
}

absl::StatusOr<RunLogPart> Decode(const v1::LogsResponse& in) {
  RunLogPart part;
  for (const v1::RunLogLine& line : in.lines()) {
    absl::StatusOr<LogEntry> entry = Decode(line.entry());
    if (!entry.ok()) return entry.status();
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("lines.process", line.process(), kMaxProcesses));
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("lines.writer", line.writer(), kMaxTextBytes));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of lines.ranks", line.ranks_size(), kMaxRanks));
    RunLogLine& out = part.lines.emplace_back();
    out.number = line.number();
    if (line.has_process()) out.process = static_cast<int32_t>(line.process());
    out.writer = PlainText(line.writer(), kMaxTextBytes);
    for (const uint32_t rank : line.ranks()) {
      WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("lines.ranks", rank, kMaxRanks));
      out.ranks.push_back(static_cast<Rank>(rank));
    }
    out.entry = *std::move(entry);
  }
  part.last = in.last();
  part.dropped = in.dropped();
  part.more = in.more();
  part.ended = in.ended();
  return part;
}

void Encode(const StepDone& step, v1::Step* out) {
  out->set_run(step.run);
  out->set_step(step.step);
  if (step.has_loss) out->set_loss(step.loss);
  out->set_end_ns(step.end_ns);
  if (step.gradient_norm.has_value()) out->set_gradient_norm(*step.gradient_norm);
}

absl::StatusOr<RunEvent> Decode(const v1::RunEvent& in) {
  if (in.has_run()) {
    absl::StatusOr<RunInfo> run = Decode(in.run());
    if (!run.ok()) return run.status();
    return RunEvent(*std::move(run));
  }
  if (!in.has_step()) return absl::InvalidArgumentError("a run event of an unknown kind");
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("step.step", in.step().step(), kMaxSteps));
  const v1::Step& step = in.step();
  StepDone done{step.run(), static_cast<int32_t>(step.step()), step.loss(), step.has_loss(), step.end_ns()};
  if (step.has_gradient_norm()) done.gradient_norm = step.gradient_norm();
  return RunEvent(done);
}

}  // namespace weft::wire
