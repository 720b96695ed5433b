#include "tests/golden/transcript_words.h"

#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

// Combines lambdas of one type each into a visitor.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

std::string Because(absl::string_view reason) { return reason.empty() ? "" : absl::StrCat(": ", reason); }

template <typename T>
std::string Numbers(const std::vector<T>& numbers) {
  return absl::StrJoin(numbers, " ");
}

std::string CompletionsWords(const Completions& m) {
  std::string words = absl::StrCat("under ", TokenWords(m.token), ":");
  for (const Completion& c : m.jobs) {
    absl::StrAppend(&words, &c == &m.jobs.front() ? " " : ", ", JobWords(c.job));
    if (c.has_loss) absl::StrAppendFormat(&words, " loss %g", c.loss);
    if (c.gradient_norm.has_value()) absl::StrAppendFormat(&words, " norm %g", *c.gradient_norm);
  }
  return words;
}

std::string AssignWords(const Assign& m) {
  std::string words = absl::StrCat("run ", m.run, " epoch ", m.epoch, ", leases");
  for (const RankLease& lease : m.leases)
    absl::StrAppend(&words, " rank ", lease.rank, " under ", TokenWords(lease.token));
  absl::StrAppend(&words, ", processes of the ranks: ", Numbers(m.process_of_rank));
  if (m.reduction_mode == ReductionMode::kFast) words += ", with collectives";
  if (m.copies) words += ", makes copies";
  if (!m.kept.empty()) absl::StrAppend(&words, ", begins with copies of epoch ", m.copies_epoch);
  if (m.examined_step >= 0) absl::StrAppend(&words, ", examine step ", m.examined_step);
  if (m.watched_before > 0) absl::StrAppend(&words, ", watch steps before ", m.watched_before);
  return words;
}

std::string SealWords(int step, int keep, bool drop, bool validate, bool passing) {
  return absl::StrCat("step ", step, drop ? ": drop it" : absl::StrCat(", keep ", keep),
                      validate ? ", validate" : "", passing ? ", passing" : "");
}

std::string ReattachWords(const Reattach& m) {
  if (m.run == 0) return "to no run";
  std::string words = absl::StrCat("to run ", m.run, " epoch ", m.epoch, ", settled: steps before ", m.ended);
  for (const Reattach::HeldRank& r : m.ranks)
    absl::StrAppend(&words, ", rank ", r.rank, " under ", TokenWords(r.token), " was granted ", r.granted,
                    " jobs, credit ", r.credit);
  for (const Reattach::AskedSnapshot& s : m.snapshots)
    absl::StrAppend(&words, ", asked for snapshot ", s.step, s.seal ? " and to seal it" : "");
  for (const int32_t step : m.validations) absl::StrAppend(&words, ", keeps weights ", step, " aside");
  return words;
}

std::string PrepareWords(const PrepareEffect& e) {
  std::string words = absl::StrCat("prepares run ", e.assignment.run, ":");
  for (const PrepareEffect::Stage& s : e.stages) {
    absl::StrAppend(&words, &s == &e.stages.front() ? "" : ",", " stage ", s.stage, " on rank ", s.rank);
    if (s.parts > 1) absl::StrAppend(&words, " slice ", s.part, " of ", s.parts);
    if (!s.holds_weights && !s.state_travels) words += " without weights";
    if (s.updated_elsewhere) words += s.installs_late ? " installs versions late" : " installs versions";
    if (s.state_travels) words += " travels";
    if (s.saves) words += " saves";
  }
  for (const PrepareEffect::Group& g : e.groups)
    absl::StrAppend(&words, ", group ", g.number, " of ranks ", Numbers(g.members));
  return words;
}

std::string StartWords(const StartEffect& e) {
  std::string words = absl::StrCat("starts ", JobWords(e.job), " on rank ", e.rank);
  if (e.round == JobRound::kBeginJoint) words += ": begins its collective";
  if (HasMicrobatch(e.job.kind)) absl::StrAppend(&words, " with weights of version ", e.version);
  if (!e.gradients.empty()) {
    words += e.last() ? ", adds gradients" : ", adds gradients and waits for more:";
    for (const TensorKey& key : e.gradients) absl::StrAppend(&words, " b", key.microbatch);
  }
  if (e.leaves.keeps_old()) absl::StrAppend(&words, ", keeps version ", e.version);
  if (e.overlapped) words += ", beside a forward";
  if (e.leaves.old == OldVersion::kPutAside) absl::StrAppend(&words, ", puts version ", e.version, " aside");
  if (e.leaves.snapshot) absl::StrAppend(&words, ", takes the snapshot of step ", e.job.step + 1);
  if (e.leaves.copy) absl::StrAppend(&words, ", takes a copy of step ", e.job.step + 1);
  return words;
}

std::string PublishWords(const PublishEffect& e) {
  if (e.process < 0) return absl::StrCat("keeps ", TensorWords(e.key));
  return absl::StrCat("publishes ", TensorWords(e.key), " on process ", e.process);
}

}  // namespace

std::string JobWords(const Job& job) {
  std::string words = absl::StrCat(JobKindName(job.kind), " t", job.step, " s", job.stage);
  if (HasMicrobatch(job.kind)) return absl::StrCat(words, " b", job.microbatch);
  return job.member == 0 ? words : absl::StrCat(words, " m", job.member);
}

std::string JobsWords(const std::vector<Job>& jobs) {
  std::string words;
  const Job* before = nullptr;
  for (const Job& j : jobs) {
    const bool same_step = before != nullptr && before->step == j.step;
    if (!same_step) absl::StrAppend(&words, before == nullptr ? "" : "; ", "t", j.step, ":");
    if (same_step && HasMicrobatch(j.kind) && before->kind == j.kind && before->stage == j.stage) {
      absl::StrAppend(&words, " b", j.microbatch);
    } else {
      absl::StrAppend(&words, same_step ? ", " : " ", JobKindName(j.kind), " s", j.stage);
      if (HasMicrobatch(j.kind)) absl::StrAppend(&words, " b", j.microbatch);
      if (j.member > 0) absl::StrAppend(&words, " m", j.member);
    }
    before = &j;
  }
  return words;
}

absl::StatusOr<Job> ParseJobWords(absl::string_view words) {
  const std::vector<std::string> parts = absl::StrSplit(words, ' ', absl::SkipEmpty());
  Job job;
  const std::optional<JobKind> kind = parts.empty() ? std::nullopt : JobKindOfName(parts[0]);
  bool known = kind.has_value();
  job.kind = kind.value_or(job.kind);
  if (!HasMicrobatch(job.kind)) job.microbatch = -1;
  for (size_t i = 1; i < parts.size(); ++i) {
    int32_t number = 0;
    known &= absl::SimpleAtoi(parts[i].substr(1), &number);
    const char letter = parts[i][0];
    known &= letter == 't' || letter == 's' || letter == 'b' || letter == 'm';
    (letter == 't'   ? job.step
     : letter == 's' ? job.stage
     : letter == 'b' ? job.microbatch
                     : job.member) = number;
  }
  if (!known) return absl::InvalidArgumentError(absl::StrCat("\"", words, "\" is no job"));
  return job;
}

std::string TokenWords(const Token& token) {
  return absl::StrCat("token ", token.epoch, ".", token.sequence);
}

absl::StatusOr<Token> ParseTokenWords(absl::string_view words) {
  const std::vector<std::string> parts = absl::StrSplit(words, '.');
  Token token;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &token.epoch) ||
      !absl::SimpleAtoi(parts[1], &token.sequence)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", words, "\" is no token"));
  }
  return token;
}

std::string TensorWords(const TensorKey& key) {
  std::string words = absl::StrCat(TensorKindName(key.kind), " t", key.step, " s", key.stage);
  if (key.microbatch >= 0) absl::StrAppend(&words, " b", key.microbatch);
  if (key.kind == TensorKind::kWeights) absl::StrAppend(&words, " version ", key.version);
  if (key.kind == TensorKind::kGradient || key.kind == TensorKind::kGradientSum)
    absl::StrAppend(&words, " part ", key.part);
  return absl::StrCat(words, " from rank ", key.producer, " for rank ", key.consumer);
}

std::string SecondsWords(int64_t ns) { return absl::StrFormat("%gs", 1e-9 * static_cast<double>(ns)); }

namespace {

constexpr absl::string_view kFromWorker[] = {
    "Hello",      "Prepared", "Credit",     "Completions", "Report",        "Failed",
    "Finished",   "GroupId",  "Forgotten",  "Stalled",     "SnapshotSaved", "CheckpointSealed",
    "Validation", "Leaving",  "CopiesHeld", "Reattach",    "LogLines",      "Spans"};
constexpr absl::string_view kFromCoordinator[] = {
    "Welcome",      "Assign",         "Grant",    "Finish",     "Abort",   "Shutdown", "GroupId",
    "TakeSnapshot", "SealCheckpoint", "Validate", "DropCopies", "Settled", "TellSpans"};
static_assert(std::size(kFromWorker) == std::variant_size_v<FromWorker>);
static_assert(std::size(kFromCoordinator) == std::variant_size_v<FromCoordinator>);

}  // namespace

std::string MessageName(const FromWorker& message) { return std::string(kFromWorker[message.index()]); }
std::string MessageName(const FromCoordinator& message) {
  return std::string(kFromCoordinator[message.index()]);
}

std::string MessageWords(const FromWorker& message) {
  const std::string words = std::visit(
      Overloaded{
          [](const Hello& m) {
            return absl::StrCat("of ", m.worker, m.process < 0 ? ", any process" : ", process ",
                                m.process < 0 ? "" : absl::StrCat(m.process), m.returns ? ", returns" : "",
                                m.device_id.empty() ? "" : absl::StrCat(", device ", m.device_id));
          },
          [](const Prepared& m) { return absl::StrCat("run ", m.run); },
          [](const Credit& m) {
            return absl::StrCat("rank ", m.rank, " under ", TokenWords(m.token), ": ", m.jobs, " jobs");
          },
          [](const Completions& m) { return absl::StrCat("rank ", m.rank, " ", CompletionsWords(m)); },
          [](const Report& m) {
            std::string words = absl::StrCat("run ", m.run);
            for (const RunningJob& r : m.running)
              absl::StrAppend(&words, ", ", JobWords(r.job), " of rank ", r.rank, " for ",
                              SecondsWords(r.age_ns));
            for (const RunningJointOperation& r : m.joint_operations)
              absl::StrAppend(&words, ", collective of ", JobWords(r.job), " of rank ", r.rank, " for ",
                              SecondsWords(r.age_ns));
            return words;
          },
          [](const Failed& m) {
            return absl::StrCat(
                "run ", m.run, Because(m.reason),
                m.damaged_checkpoint < 0 ? "" : absl::StrCat(", damaged checkpoint ", m.damaged_checkpoint),
                m.non_finite_step < 0 ? "" : absl::StrCat(", not finite in step ", m.non_finite_step),
                m.device_lost ? ", device lost" : "");
          },
          [](const Leaving& m) { return m.reason; },
          [](const Finished& m) { return absl::StrCat("run ", m.run); },
          [](const GroupId& m) { return absl::StrCat("run ", m.run, " group ", m.group); },
          [](const Forgotten& m) { return absl::StrCat("run ", m.run); },
          [](const Stalled& m) { return absl::StrCat("run ", m.run, Because(m.reason)); },
          [](const SnapshotSaved& m) { return absl::StrCat("step ", m.step, Because(m.failure)); },
          [](const CheckpointSealed& m) { return absl::StrCat("step ", m.step, Because(m.failure)); },
          [](const Validation& m) {
            return absl::StrCat("step ", m.step, ", ", m.samples, " of ", m.all_samples, " samples",
                                Because(m.failure));
          },
          [](const CopiesHeld& m) {
            return absl::StrCat("step ", m.step, " of epoch ", m.epoch, ", parts: ", m.parts.size());
          },
          [](const Reattach& m) { return ReattachWords(m); },
          [](const LogLines& m) {
            std::string words = absl::StrCat("run ", m.run);
            for (const LogEntry& line : m.lines)
              absl::StrAppend(&words, ", ", LogSeverityName(line.severity), ": ", line.text);
            return words;
          },
          [](const Spans& m) {
            std::string words = absl::StrCat("run ", m.run);
            for (const Spans::OfRank& r : m.ranks)
              absl::StrAppend(&words, ", rank ", r.rank, ": ", r.idle.size(), " idle and ",
                              r.transfers.size(), " transfers");
            return words;
          }},
      message);
  return absl::StrCat(MessageName(message), " ", words);
}

std::string MessageWords(const FromCoordinator& message) {
  const std::string words = std::visit(
      Overloaded{
          [](const Welcome& m) { return absl::StrCat("epoch ", m.epoch, ", process ", m.process); },
          [](const Assign& m) { return AssignWords(m); },
          [](const Grant& m) {
            return absl::StrCat("rank ", m.rank, " under ", TokenWords(m.token), ", ", JobsWords(m.jobs));
          },
          [](const Finish& m) { return absl::StrCat("run ", m.run); },
          [](const Abort& m) { return absl::StrCat("run ", m.run, Because(m.reason)); },
          [](const Shutdown& m) { return m.reason.empty() ? "it leaves" : m.reason; },
          [](const GroupId& m) { return absl::StrCat("run ", m.run, " group ", m.group); },
          [](const TakeSnapshot& m) { return absl::StrCat("step ", m.step); },
          [](const SealCheckpoint& m) { return SealWords(m.step, m.keep, m.drop, m.validate, m.passing); },
          [](const Validate& m) { return absl::StrCat("step ", m.step); },
          [](const DropCopies& m) {
            return absl::StrCat("run ", m.run, " but of epoch ", m.epoch, " from step ", m.step, " on");
          },
          [](const Settled& m) {
            return absl::StrCat("steps before ", m.ended, ", snapshots up to ", m.sealed,
                                ", validations up to ", m.validated);
          },
          [](const TellSpans& m) { return absl::StrCat("run ", m.run); }},
      message);
  return absl::StrCat(MessageName(message), " ", words);
}

std::string EffectWords(const WorkerEffect& effect) {
  return std::visit(
      Overloaded{
          [](const SendEffect& e) { return MessageWords(e.message); },
          [](const PrepareEffect& e) { return PrepareWords(e); },
          [](const JoinEffect& e) { return absl::StrCat("joins group ", e.group, " by the id ", e.id); },
          [](const WantEffect& e) {
            return absl::StrCat("wants ", TensorWords(e.key), " on process ", e.process);
          },
          [](const StartEffect& e) { return StartWords(e); },
          [](const PublishEffect& e) { return PublishWords(e); },
          [](const DropEffect& e) {
            return absl::StrCat("drops version ", e.version, " of stage ", e.stage, " on rank ", e.rank);
          },
          [](const SnapshotEffect& e) {
            return absl::StrCat("expects the snapshot of step ", e.step, " in pieces: ", e.pieces);
          },
          [](const SaveEffect& e) { return absl::StrCat("saves its stages as of step ", e.step); },
          [](const SealEffect& e) {
            return absl::StrCat("seals the checkpoint of ",
                                SealWords(e.step, e.keep, e.drop, e.validate, e.passing));
          },
          [](const ValidateEffect& e) { return absl::StrCat("validates the weights of step ", e.step); },
          [](const CopyEffect& e) { return absl::StrCat("expects copies of step ", e.step, ": ", e.parts); },
          [](const ResumeEffect& e) { return absl::StrCat("begins with the copies of step ", e.step); },
          [](const DropCopiesEffect& e) {
            return absl::StrCat("drops copies but of epoch ", e.epoch, " from step ", e.step, " on");
          },
          [](const FinishEffect&) { return std::string("makes its last reports"); },
          [](const ForgetEffect&) { return std::string("forgets the run"); },
          [](const ExitEffect& e) { return absl::StrCat("exits", Because(e.reason)); }},
      effect);
}

std::string RunWords(const RunInfo& info) {
  std::string words = absl::StrCat("run ", info.id, " is ", RunStateName(info.state), Because(info.reason));
  if (info.steps_done > 0) absl::StrAppend(&words, "; steps done ", info.steps_done, " of ", info.steps);
  if (info.stop_step >= 0) absl::StrAppend(&words, "; stops at step ", info.stop_step);
  if (info.checkpoint_step >= 0) absl::StrAppend(&words, "; checkpoint of step ", info.checkpoint_step);
  if (!info.checkpoint_failure.empty()) absl::StrAppend(&words, "; ", info.checkpoint_failure);
  if (info.validation.has_value()) absl::StrAppend(&words, "; validated at step ", info.validation->step);
  if (!info.validation_failure.empty()) absl::StrAppend(&words, "; ", info.validation_failure);
  if (!info.reduction.empty()) absl::StrAppend(&words, "; ", info.reduction);
  return words;
}

}  // namespace weft
