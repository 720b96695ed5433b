#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/hash_columns.h"
#include "proto/wire/job_columns.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"
#include "proto/wire/span_columns.h"
#include "proto/wire/state_parts.h"

namespace weft::wire {
namespace {

struct WorkerEncoder {
  v1::WorkerPayload* out;

  void operator()(const Hello& m) const {
    v1::Hello* o = out->mutable_hello();
    o->set_worker(m.worker);
    o->set_host(CleanText(m.host, kMaxTextBytes));
    o->set_pid(m.pid);
    o->set_process(m.process);
    o->set_address(m.address);
    o->set_device(CleanText(m.device, kMaxDeviceBytes));
    o->set_device_id(CleanText(m.device_id, kMaxDeviceBytes));
    o->set_reduction_library(CleanText(m.reduction_library, kMaxDeviceBytes));
    o->set_pool(m.pool);
    o->set_returns(m.returns);
    o->set_tells_spans(m.tells_spans);
    o->set_clock(CleanText(m.clock, kMaxTextBytes));
    o->set_node(CleanText(m.node, kMaxTextBytes));
    o->set_release(CleanText(m.release, kMaxDeviceBytes));
    o->set_libraries(CleanText(m.libraries, kMaxTextBytes));
  }
  void operator()(const Prepared& m) const { out->mutable_prepared()->set_run(m.run); }
  void operator()(const Credit& m) const {
    v1::Credit* o = out->mutable_credit();
    o->set_run(m.run);
    o->set_rank(m.rank);
    Encode(m.token, o->mutable_token());
    o->set_jobs(m.jobs);
  }
  void operator()(const Completions& m) const;
  void operator()(const Report& m) const;
  void operator()(const Failed& m) const {
    out->mutable_failed()->set_run(m.run);
    out->mutable_failed()->set_reason(CleanText(m.reason, kMaxTextBytes));
    if (m.link_to >= 0) out->mutable_failed()->set_link_to(static_cast<uint32_t>(m.link_to));
    if (m.damaged_checkpoint >= 0)
      out->mutable_failed()->set_damaged_checkpoint(static_cast<uint32_t>(m.damaged_checkpoint));
    if (m.non_finite_step >= 0)
      out->mutable_failed()->set_non_finite_step(static_cast<uint32_t>(m.non_finite_step));
    out->mutable_failed()->set_device_lost(m.device_lost);
  }
  void operator()(const Finished& m) const { EncodeReports(m, out->mutable_finished()); }
  void operator()(const GroupId& m) const { Encode(m, out->mutable_group_id()); }
  void operator()(const Leaving& m) const {
    out->mutable_leaving()->set_reason(CleanText(m.reason, kMaxTextBytes));
  }
  void operator()(const Forgotten& m) const { out->mutable_forgotten()->set_run(m.run); }
  void operator()(const Stalled& m) const {
    out->mutable_stalled()->set_run(m.run);
    out->mutable_stalled()->set_reason(CleanText(m.reason, kMaxTextBytes));
  }
  void operator()(const SnapshotSaved& m) const { EncodeSaved(m, out->mutable_snapshot_saved()); }
  void operator()(const CheckpointSealed& m) const { EncodeSaved(m, out->mutable_checkpoint_sealed()); }
  void operator()(const Validation& m) const { Encode(m, out->mutable_validation()); }

  void operator()(const CopiesHeld& m) const {
    v1::CopiesHeld* o = out->mutable_copies_held();
    o->set_run(m.run);
    o->set_epoch(m.epoch);
    o->set_step(m.step);
    for (const StatePart& part : m.parts) {
      o->add_stage(part.stage);
      o->add_part(part.part);
    }
    o->set_run_id(m.run_id);
    o->set_fast(m.reduction == ReductionMode::kFast);
  }
  void operator()(const Reattach& m) const { Encode(m, out->mutable_reattach()); }
  void operator()(const LogLines& m) const {
    out->mutable_log_lines()->set_run(m.run);
    for (const LogEntry& line : m.lines) Encode(line, out->mutable_log_lines()->add_lines());
  }
  void operator()(const Spans& m) const {
    out->mutable_spans()->set_run(m.run);
    for (const Spans::OfRank& spans : m.ranks) {
      v1::RankSpans* o = out->mutable_spans()->add_ranks();
      o->set_rank(spans.rank);
      Encode(spans.idle, o->mutable_idle());
      Encode(spans.transfers, o->mutable_transfers());
    }
  }

  template <typename Value, typename Wire>
  void EncodeSaved(const Value& m, Wire* o) const {
    o->set_run(m.run);
    o->set_step(m.step);
    o->set_failure(CleanText(m.failure, kMaxTextBytes));
  }

  template <typename Value, typename Wire>
  void EncodeReports(const Value& m, Wire* o) const {
    o->set_run(m.run);
    for (const RankReport& r : m.ranks) Encode(r, o->add_ranks());
  }
};

// Writes columns of what runs: jobs, or joint operations by theirs, with ranks and ages.
template <typename Running, typename Ranks, typename Ages>
void EncodeRunning(const std::vector<Running>& running, v1::JobColumns* jobs, Ranks* ranks, Ages* ages) {
  JobColumnsWriter columns(static_cast<int>(running.size()), jobs);
  for (const Running& r : running) {
    columns.Add(r.job);
    ranks->Add(r.rank);
    ages->Add(static_cast<uint64_t>(std::max<int64_t>(0, r.age_ns)));
  }
}

void WorkerEncoder::operator()(const Report& m) const {
  v1::Report* o = out->mutable_report();
  EncodeReports(m, o);
  if (!m.running.empty()) {
    EncodeRunning(m.running, o->mutable_running(), o->mutable_running_rank(), o->mutable_running_age_ns());
  }
  if (m.joint_operations.empty()) return;
  EncodeRunning(m.joint_operations, o->mutable_joint_operations(), o->mutable_joint_operation_rank(),
                o->mutable_joint_operation_age_ns());
  for (const RunningJointOperation& c : m.joint_operations) o->add_joint_operation_bytes(c.bytes);
}

void WorkerEncoder::operator()(const Completions& m) const {
  v1::Completions* o = out->mutable_completions();
  const int count = static_cast<int>(m.jobs.size());
  o->set_run(m.run);
  o->set_rank(m.rank);
  Encode(m.token, o->mutable_token());
  JobColumnsWriter columns(count, o->mutable_jobs());
  o->mutable_start_ns()->Resize(count, 0);
  o->mutable_duration_ns()->Resize(count, 0);
  int64_t start = 0;
  for (int row = 0; row < count; ++row) {
    const Completion& c = m.jobs[row];
    columns.Add(c.job);
    o->set_start_ns(row, c.start_ns - start);
    o->set_duration_ns(row, static_cast<uint64_t>(c.end_ns - c.start_ns));
    start = c.start_ns;
    if (c.has_loss) {
      o->add_loss_row(row);
      o->add_loss(c.loss);
    }
    if (c.gradient_norm.has_value()) {
      o->add_gradient_norm_row(row);
      o->add_gradient_norm(*c.gradient_norm);
    }
    if (!c.hashes.empty()) AddHashes(row, c.hashes, o);
  }
  const auto has_delay = [](const Completion& c) { return c.delay_ns > 0; };
  if (!std::any_of(m.jobs.begin(), m.jobs.end(), has_delay)) return;
  for (const Completion& c : m.jobs) o->add_delay_ns(static_cast<uint64_t>(std::max<int64_t>(0, c.delay_ns)));
}

absl::StatusOr<FromWorker> DecodeHello(const v1::Hello& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("hello.worker", in.worker()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.host", in.host(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.clock", in.clock(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.node", in.node(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.release", in.release(), kMaxDeviceBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.libraries", in.libraries(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.address", in.address(), kMaxAddressBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckNotNegative("hello.pid", in.pid()));
  if (in.process() < -1 || in.process() >= kMaxProcesses) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello.process is ", in.process(), ", but must be -1 to ", kMaxProcesses - 1));
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.device", in.device(), kMaxDeviceBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.device_id", in.device_id(), kMaxDeviceBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("hello.reduction_library", in.reduction_library(), kMaxDeviceBytes));
  if (!in.pool().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("hello.pool", in.pool()));
  return Hello{in.worker(),
               PlainText(in.host(), kMaxTextBytes),
               in.pid(),
               in.process(),
               in.address(),
               PlainText(in.device(), kMaxDeviceBytes),
               PlainText(in.device_id(), kMaxDeviceBytes),
               PlainText(in.reduction_library(), kMaxDeviceBytes),
               in.pool(),
               in.returns(),
               in.tells_spans(),
               PlainText(in.clock(), kMaxTextBytes),
               PlainText(in.node(), kMaxTextBytes),
               PlainText(in.release(), kMaxDeviceBytes),
               PlainText(in.libraries(), kMaxTextBytes)};
}

absl::StatusOr<FromWorker> DecodeCredit(const v1::Credit& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("credit.rank", in.rank(), kMaxRanks - 1));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("credit.jobs", in.jobs(), kMaxCredit));
  return Credit{in.run(), static_cast<Rank>(in.rank()), Decode(in.token()), static_cast<int32_t>(in.jobs())};
}

absl::Status DecodeTimes(const v1::Completions& in, std::vector<Completion>* jobs) {
  // Sums stay far from overflow: about 292 years of nanoseconds.
  constexpr int64_t kMax = INT64_MAX / 4;
  int64_t start = 0;
  for (int row = 0; row < static_cast<int>(jobs->size()); ++row) {
    const int64_t delta = in.start_ns(row);
    if (delta > kMax || delta < -kMax || in.duration_ns(row) > static_cast<uint64_t>(kMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("completions: the times of job ", row, " are out of range"));
    }
    start += delta;
    if (start < 0 || start > kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("completions: the start of job ", row, " is out of range"));
    }
    (*jobs)[row].start_ns = start;
    (*jobs)[row].end_ns = start + static_cast<int64_t>(in.duration_ns(row));
  }
  return absl::OkStatus();
}

absl::Status DecodeDelays(const v1::Completions& in, std::vector<Completion>* jobs) {
  if (in.delay_ns().empty()) return absl::OkStatus();
  if (static_cast<size_t>(in.delay_ns_size()) != jobs->size())
    return absl::InvalidArgumentError("completions: column delay_ns differs in length from the jobs");
  for (int row = 0; row < in.delay_ns_size(); ++row) {
    if (in.delay_ns(row) > static_cast<uint64_t>(kMaxWireTime)) {
      return absl::InvalidArgumentError(
          absl::StrCat("completions: the delay of job ", row, " is out of range"));
    }
    (*jobs)[row].delay_ns = static_cast<int64_t>(in.delay_ns(row));
  }
  return absl::OkStatus();
}

// Decodes a column that only some of the jobs have: `rows` says which. Calls `take` with each of those and
// its value.
template <typename Rows, typename Values, typename Take>
absl::Status DecodeSparse(absl::string_view name, const Rows& rows, const Values& values,
                          std::vector<Completion>* jobs, Take take) {
  if (rows.size() != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("completions: columns ", name, "_row and ", name, " differ in length"));
  }
  int64_t before = -1;
  for (int i = 0; i < values.size(); ++i) {
    const uint32_t row = rows[i];
    if (static_cast<int64_t>(row) <= before || row >= jobs->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("completions: ", name, "_row does not ascend within the jobs"));
    }
    before = row;
    take(&(*jobs)[row], values[i]);
  }
  return absl::OkStatus();
}

absl::Status DecodeLosses(const v1::Completions& in, std::vector<Completion>* jobs) {
  return DecodeSparse("loss", in.loss_row(), in.loss(), jobs, [](Completion* job, double loss) {
    job->loss = loss;
    job->has_loss = true;
  });
}

absl::Status DecodeNorms(const v1::Completions& in, std::vector<Completion>* jobs) {
  return DecodeSparse("gradient_norm", in.gradient_norm_row(), in.gradient_norm(), jobs,
                      [](Completion* job, double norm) { job->gradient_norm = norm; });
}

absl::StatusOr<FromWorker> DecodeCompletions(const v1::Completions& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("completions.rank", in.rank(), kMaxRanks - 1));
  const size_t count = in.jobs().kind().size();
  if (static_cast<size_t>(in.start_ns_size()) != count ||
      static_cast<size_t>(in.duration_ns_size()) != count) {
    return absl::InvalidArgumentError(
        "completions: columns start_ns and duration_ns differ in length from the jobs");
  }
  Completions m{in.run(), static_cast<Rank>(in.rank()), Decode(in.token()), {}};
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of jobs", count, kMaxJobs));
  m.jobs.resize(count);
  WEFT_WIRE_RETURN_IF_ERROR(ReadJobs(in.jobs(), [&](int row, const Job& job) { m.jobs[row].job = job; }));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeTimes(in, &m.jobs));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeDelays(in, &m.jobs));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeLosses(in, &m.jobs));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeNorms(in, &m.jobs));
  WEFT_WIRE_RETURN_IF_ERROR(ReadHashes(in, &m.jobs));
  return FromWorker(std::move(m));
}

template <typename Value, typename Wire>
absl::StatusOr<FromWorker> DecodeReports(const Wire& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of ranks of a report", in.ranks_size(), kMaxRanks));
  Value m{in.run(), {}};
  m.ranks.reserve(in.ranks_size());
  for (const v1::RankReport& r : in.ranks()) {
    absl::StatusOr<RankReport> report = Decode(r);
    if (!report.ok()) return report.status();
    m.ranks.push_back(*std::move(report));
  }
  return FromWorker(std::move(m));
}

// Reads columns that EncodeRunning wrote; `name` as in running_rank.
template <typename Running, typename Ranks, typename Ages>
absl::Status DecodeRunning(absl::string_view name, const v1::JobColumns& jobs, const Ranks& ranks,
                           const Ages& ages, std::vector<Running>* running) {
  const size_t count = jobs.kind().size();
  if (static_cast<size_t>(ranks.size()) != count || static_cast<size_t>(ages.size()) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("report: columns ", name, "_rank and ", name, "_age_ns differ in length from the jobs"));
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("the number of jobs of ", name), count, kMaxJobs));
  running->resize(count);
  WEFT_WIRE_RETURN_IF_ERROR(ReadJobs(jobs, [&](int row, const Job& job) { (*running)[row].job = job; }));
  for (int row = 0; row < static_cast<int>(count); ++row) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("report.", name, "_rank"), ranks[row], kMaxRanks - 1));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("report.", name, "_age_ns"), ages[row], kMaxWireTime));
    (*running)[row].rank = static_cast<Rank>(ranks[row]);
    (*running)[row].age_ns = static_cast<int64_t>(ages[row]);
  }
  return absl::OkStatus();
}

absl::Status DecodeJointOperations(const v1::Report& in, std::vector<RunningJointOperation>* operations) {
  WEFT_WIRE_RETURN_IF_ERROR(DecodeRunning("joint_operation", in.joint_operations(), in.joint_operation_rank(),
                                          in.joint_operation_age_ns(), operations));
  if (static_cast<size_t>(in.joint_operation_bytes_size()) != operations->size())
    return absl::InvalidArgumentError("report: column joint_operation_bytes differs in length from the jobs");
  for (int row = 0; row < in.joint_operation_bytes_size(); ++row) {
    WEFT_WIRE_RETURN_IF_ERROR(
        CheckAtMost("report.joint_operation_bytes", in.joint_operation_bytes(row), kMaxJointBytes));
    (*operations)[row].bytes = in.joint_operation_bytes(row);
  }
  return absl::OkStatus();
}

absl::StatusOr<FromWorker> DecodeReport(const v1::Report& in) {
  absl::StatusOr<FromWorker> report = DecodeReports<Report>(in);
  if (!report.ok()) return report;
  Report& m = std::get<Report>(*report);
  WEFT_WIRE_RETURN_IF_ERROR(
      DecodeRunning("running", in.running(), in.running_rank(), in.running_age_ns(), &m.running));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeJointOperations(in, &m.joint_operations));
  return report;
}

template <typename Value, typename Wire>
absl::StatusOr<FromWorker> DecodeSaved(absl::string_view name, const Wire& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat(name, ".step"), in.step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes(absl::StrCat(name, ".failure"), in.failure(), kMaxTextBytes));
  return FromWorker(Value{in.run(), static_cast<int32_t>(in.step()), in.failure()});
}

absl::StatusOr<FromWorker> DecodeCopiesHeld(const v1::CopiesHeld& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("copies_held.step", in.step(), kMaxSteps));
  if (!in.run_id().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("copies_held.run_id", in.run_id()));
  CopiesHeld m{in.run(), in.epoch(),  static_cast<int32_t>(in.step()),
               {},       in.run_id(), in.fast() ? ReductionMode::kFast : ReductionMode::kOrdered};
  WEFT_WIRE_RETURN_IF_ERROR(DecodeParts("copies_held", in.stage(), in.part(), &m.parts));
  return FromWorker(std::move(m));
}

absl::StatusOr<FromWorker> DecodeLeaving(const v1::Leaving& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("leaving.reason", in.reason(), kMaxTextBytes));
  return Leaving{PlainText(in.reason(), kMaxTextBytes)};
}

absl::StatusOr<FromWorker> DecodeFailed(const v1::Failed& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("failed.reason", in.reason(), kMaxTextBytes));
  Failed m{in.run(), PlainText(in.reason(), kMaxTextBytes)};
  if (in.has_link_to()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("failed.link_to", in.link_to(), kMaxProcesses - 1));
    m.link_to = static_cast<int32_t>(in.link_to());
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("failed.damaged_checkpoint", in.damaged_checkpoint(), kMaxSteps));
  if (in.has_damaged_checkpoint()) m.damaged_checkpoint = static_cast<int32_t>(in.damaged_checkpoint());
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("failed.non_finite_step", in.non_finite_step(), kMaxSteps));
  if (in.has_non_finite_step()) m.non_finite_step = static_cast<int32_t>(in.non_finite_step());
  m.device_lost = in.device_lost();
  return m;
}

absl::StatusOr<FromWorker> DecodeLogLines(const v1::LogLines& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of log_lines", in.lines_size(), kMaxLogLines));
  LogLines m{in.run(), {}};
  for (const v1::LogEntry& line : in.lines()) {
    absl::StatusOr<LogEntry> entry = Decode(line);
    if (!entry.ok()) return entry.status();
    m.lines.push_back(*std::move(entry));
  }
  return m;
}

absl::StatusOr<FromWorker> DecodeSpans(const v1::Spans& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of ranks of spans", in.ranks_size(), kMaxRanks));
  Spans m{in.run(), {}};
  for (const v1::RankSpans& spans : in.ranks()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("spans.rank", spans.rank(), kMaxRanks - 1));
    Spans::OfRank of_rank{static_cast<Rank>(spans.rank()), {}, {}};
    WEFT_WIRE_RETURN_IF_ERROR(Decode(spans.idle(), &of_rank.idle));
    WEFT_WIRE_RETURN_IF_ERROR(Decode(spans.transfers(), &of_rank.transfers));
    m.ranks.push_back(std::move(of_rank));
  }
  return m;
}

}  // namespace

void Encode(const LogEntry& entry, v1::LogEntry* out) {
  out->set_severity(static_cast<uint32_t>(entry.severity));
  out->set_unix_ns(entry.unix_ns);
  out->set_text(CleanText(entry.text, kMaxLogBytes));
}

absl::StatusOr<LogEntry> Decode(const v1::LogEntry& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("log_lines.severity", in.severity(), kLogSeverities - 1));
  WEFT_WIRE_RETURN_IF_ERROR(CheckNotNegative("log_lines.unix_ns", in.unix_ns()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("log_lines.text", in.text(), kMaxLogBytes));
  return LogEntry{static_cast<LogSeverity>(in.severity()), in.unix_ns(), PlainText(in.text(), kMaxLogBytes)};
}

void Encode(const FromWorker& message, v1::WorkerPayload* out) {
  out->Clear();
  std::visit(WorkerEncoder{out}, message);
}

absl::StatusOr<FromWorker> Decode(const v1::WorkerPayload& in) {
  const int fields = in.has_hello() + in.has_prepared() + in.has_credit() + in.has_completions() +
                     in.has_report() + in.has_failed() + in.has_finished() + in.has_group_id() +
                     in.has_forgotten() + in.has_stalled() + in.has_snapshot_saved() +
                     in.has_checkpoint_sealed() + in.has_validation() + in.has_leaving() +
                     in.has_copies_held() + in.has_reattach() + in.has_log_lines() + in.has_spans();
  if (fields != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a worker's payload holds ", fields, " known messages instead of one"));
  }
  if (in.has_completions()) return DecodeCompletions(in.completions());
  if (in.has_credit()) return DecodeCredit(in.credit());
  if (in.has_hello()) return DecodeHello(in.hello());
  if (in.has_prepared()) return Prepared{in.prepared().run()};
  if (in.has_report()) return DecodeReport(in.report());
  if (in.has_failed()) return DecodeFailed(in.failed());
  if (in.has_copies_held()) return DecodeCopiesHeld(in.copies_held());
  if (in.has_reattach()) {
    absl::StatusOr<Reattach> reattach = Decode(in.reattach());
    if (!reattach.ok()) return reattach.status();
    return FromWorker(*std::move(reattach));
  }
  if (in.has_log_lines()) return DecodeLogLines(in.log_lines());
  if (in.has_spans()) return DecodeSpans(in.spans());
  if (in.has_leaving()) return DecodeLeaving(in.leaving());
  if (in.has_forgotten()) return Forgotten{in.forgotten().run()};
  if (in.has_stalled()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("stalled.reason", in.stalled().reason(), kMaxTextBytes));
    return Stalled{in.stalled().run(), PlainText(in.stalled().reason(), kMaxTextBytes)};
  }
  if (in.has_snapshot_saved()) return DecodeSaved<SnapshotSaved>("snapshot_saved", in.snapshot_saved());
  if (in.has_checkpoint_sealed())
    return DecodeSaved<CheckpointSealed>("checkpoint_sealed", in.checkpoint_sealed());
  if (in.has_validation()) {
    absl::StatusOr<Validation> validation = Decode(in.validation());
    if (!validation.ok()) return validation.status();
    return FromWorker(*std::move(validation));
  }
  if (in.has_group_id()) {
    absl::StatusOr<GroupId> id = Decode(in.group_id());
    if (!id.ok()) return id.status();
    return FromWorker(*std::move(id));
  }
  return DecodeReports<Finished>(in.finished());
}

void Encode(const Packet<std::shared_ptr<const FromWorker>>& packet, v1::WorkerMessage* out) {
  out->Clear();
  out->set_ack(packet.ack);
  out->set_first(packet.first);
  for (const auto& m : packet.messages) Encode(*m, out->add_payloads());
}

absl::StatusOr<Packet<FromWorker>> Decode(uint64_t link, const v1::WorkerMessage& in) {
  if (in.has_open())
    return absl::InvalidArgumentError("`open` is allowed only in the first message of a stream");
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of payloads", in.payloads_size(), kMaxPayloads));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("`first`", in.first(), UINT64_MAX / 2));
  Packet<FromWorker> packet{link, in.ack(), in.first(), {}};
  packet.messages.reserve(in.payloads_size());
  for (const v1::WorkerPayload& p : in.payloads()) {
    absl::StatusOr<FromWorker> m = Decode(p);
    if (!m.ok()) return m.status();
    packet.messages.push_back(*std::move(m));
  }
  return packet;
}

}  // namespace weft::wire
