#include "coordinator/store/stored_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/runs_codec.h"
#include "proto/wire/session_codec.h"
#include "weft/v1/store.pb.h"

namespace weft {
namespace {

absl::Status Unreadable(const char* what, absl::string_view why = "") {
  return absl::DataLossError(
      absl::StrCat("a stored ", what, " cannot be read", why.empty() ? "" : ": ", why));
}

template <class Message>
bool Parse(absl::string_view bytes, Message* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// Times that have not come yet are 0 on either clock.
void MoveTimes(int64_t by_ns, RunInfo* run) {
  for (int64_t* time : {&run->submitted_ns, &run->started_ns, &run->ended_ns}) {
    if (*time != 0) *time += by_ns;
  }
}

}  // namespace

std::string EncodeStored(const Submission& submission) {
  v1::StoredSubmission out;
  out.set_run(submission.run);
  out.set_request(submission.request);
  out.set_spec(submission.spec);
  out.set_processes(submission.processes);
  out.set_output(submission.output);
  out.set_folder(submission.folder.path);
  out.set_live(submission.folder.live);
  out.set_folder_run_id(submission.folder.run_id);
  out.set_file(submission.file);
  out.set_run_id(submission.run_id);
  return out.SerializeAsString();
}

std::string EncodeStored(const RunFigures& figures, int64_t unix_minus_monotonic_ns) {
  v1::StoredFigures out;
  wire::Encode(figures.info, unix_minus_monotonic_ns, out.mutable_run());
  out.set_losses(figures.losses);
  out.set_furthest(figures.furthest);
  if (figures.first_start_ns != INT64_MAX)
    out.set_first_start_ns(figures.first_start_ns + unix_minus_monotonic_ns);
  out.set_epoch(figures.epoch);
  out.set_sealed_steps(figures.sealed + 1);
  out.set_validated_steps(figures.validated + 1);
  out.mutable_checkpoints()->Add(figures.checkpoints.begin(), figures.checkpoints.end());
  return out.SerializeAsString();
}

std::string EncodeStored(const AttemptRecord& attempt) {
  v1::StoredAttempt out;
  out.set_run(attempt.run);
  out.set_epoch(attempt.epoch);
  out.set_first_token(attempt.first_token);
  out.set_first_step(attempt.first_step);
  out.set_fast(attempt.reduction == ReductionMode::kFast);
  out.set_from_copies(attempt.from_copies);
  out.set_schedule(attempt.schedule);
  out.set_left_links(attempt.left_links);
  out.set_ordered(attempt.ordered);
  for (const AttemptRecord::Member& member : attempt.members) {
    v1::StoredMember* o = out.add_members();
    o->set_process(member.process);
    o->set_worker(member.worker);
    o->set_label(member.label);
  }
  for (const RankReport& report : attempt.former) wire::Encode(report, out.add_former());
  return out.SerializeAsString();
}

std::string EncodeStored(const StepDone& step, int64_t unix_minus_monotonic_ns) {
  v1::Step out;
  wire::Encode(step, &out);
  out.set_end_ns(step.end_ns + unix_minus_monotonic_ns);
  return out.SerializeAsString();
}

std::string EncodeStored(const Validation& validation) {
  v1::Validation out;
  wire::Encode(validation, &out);
  return out.SerializeAsString();
}

absl::StatusOr<Submission> DecodeSubmission(absl::string_view bytes) {
  v1::StoredSubmission in;
  if (!Parse(bytes, &in)) return Unreadable("submission");
  return Submission{in.run(),    in.request(),
                    in.spec(),   static_cast<int32_t>(in.processes()),
                    in.output(), {in.folder(), in.live(), in.folder_run_id()},
                    in.file(),   in.run_id()};
}

absl::StatusOr<RunFigures> DecodeFigures(absl::string_view bytes, int64_t unix_minus_monotonic_ns) {
  v1::StoredFigures in;
  if (!Parse(bytes, &in)) return Unreadable("run");
  absl::StatusOr<RunInfo> info = wire::Decode(in.run());
  if (!info.ok()) return Unreadable("run", info.status().message());
  RunFigures figures;
  figures.info = *std::move(info);
  MoveTimes(-unix_minus_monotonic_ns, &figures.info);
  figures.losses = static_cast<int32_t>(in.losses());
  figures.furthest = in.furthest();
  if (in.first_start_ns() != 0) figures.first_start_ns = in.first_start_ns() - unix_minus_monotonic_ns;
  figures.epoch = in.epoch();
  figures.sealed = static_cast<int32_t>(in.sealed_steps()) - 1;
  figures.validated = static_cast<int32_t>(in.validated_steps()) - 1;
  figures.checkpoints.assign(in.checkpoints().begin(), in.checkpoints().end());
  return figures;
}

absl::StatusOr<AttemptRecord> DecodeAttempt(absl::string_view bytes) {
  v1::StoredAttempt in;
  if (!Parse(bytes, &in)) return Unreadable("attempt");
  AttemptRecord attempt;
  attempt.run = in.run();
  attempt.epoch = in.epoch();
  attempt.first_token = in.first_token();
  attempt.first_step = static_cast<int32_t>(in.first_step());
  attempt.reduction = in.fast() ? ReductionMode::kFast : ReductionMode::kOrdered;
  attempt.from_copies = in.from_copies();
  attempt.schedule = in.schedule();
  attempt.left_links = in.left_links();
  attempt.ordered = in.ordered();
  for (const v1::StoredMember& member : in.members())
    attempt.members.push_back({static_cast<int32_t>(member.process()), member.worker(), member.label()});
  for (const v1::RankReport& report : in.former()) {
    absl::StatusOr<RankReport> former = wire::Decode(report);
    if (!former.ok()) return Unreadable("attempt", former.status().message());
    attempt.former.push_back(*std::move(former));
  }
  return attempt;
}

absl::StatusOr<StepDone> DecodeStep(absl::string_view bytes, int64_t unix_minus_monotonic_ns) {
  v1::RunEvent in;
  if (!Parse(bytes, in.mutable_step())) return Unreadable("step");
  absl::StatusOr<RunEvent> event = wire::Decode(in);
  if (!event.ok()) return Unreadable("step", event.status().message());
  StepDone step = std::get<StepDone>(*std::move(event));
  step.end_ns -= unix_minus_monotonic_ns;
  return step;
}

absl::StatusOr<Validation> DecodeValidation(absl::string_view bytes) {
  v1::Validation in;
  if (!Parse(bytes, &in)) return Unreadable("validation");
  absl::StatusOr<Validation> validation = wire::Decode(in);
  if (!validation.ok()) return Unreadable("validation", validation.status().message());
  return validation;
}

}  // namespace weft
