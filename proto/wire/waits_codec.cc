#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/runs_codec.h"

namespace weft::wire {
namespace {

void EncodeRank(const RankWait& wait, v1::RankWait* out) {
  out->set_rank(static_cast<uint32_t>(wait.rank));
  out->set_process(static_cast<uint32_t>(wait.process));
  out->set_does(wait.does);
  if (wait.job.has_value()) Encode(*wait.job, out->mutable_job());
  out->set_for_ns(wait.for_ns);
  if (wait.missing.has_value()) {
    out->set_tensor(std::string(TensorKindName(wait.missing->tensor)));
    Encode(wait.missing->maker, out->mutable_maker());
    out->set_maker_rank(static_cast<uint32_t>(wait.missing->rank));
  }
  out->set_further(static_cast<uint32_t>(wait.further));
  if (wait.root >= 0) out->set_root(static_cast<uint32_t>(wait.root));
  for (const Rank rank : wait.chain) out->add_chain(static_cast<uint32_t>(rank));
}

absl::StatusOr<std::optional<Job>> DecodeIf(bool there, const v1::Job& in) {
  if (!there) return std::optional<Job>();
  absl::StatusOr<Job> job = Decode(in);
  if (!job.ok()) return job.status();
  return std::optional<Job>(*job);
}

absl::StatusOr<TensorKind> TensorNamed(const std::string& name) {
  for (int kind = 0; kind < kTensorKinds; ++kind) {
    if (TensorKindName(static_cast<TensorKind>(kind)) == name) return static_cast<TensorKind>(kind);
  }
  return absl::InvalidArgumentError("ranks.tensor is of an unknown kind");
}

absl::StatusOr<RankWait> DecodeRank(const v1::RankWait& in, int roots) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks.rank", in.rank(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks.process", in.process(), kMaxProcesses));
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("ranks.does", in.does()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks.maker_rank", in.maker_rank(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks.further", in.further(), INT32_MAX));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the length of ranks.chain", in.chain_size(), kMostOfChain));
  for (const uint32_t rank : in.chain())
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("ranks.chain", rank, kMaxRanks));
  if (in.has_root() && in.root() >= static_cast<uint32_t>(roots))
    return absl::InvalidArgumentError(absl::StrCat("ranks.root is ", in.root(), " of ", roots));
  RankWait wait{static_cast<Rank>(in.rank()), static_cast<int32_t>(in.process()), in.does()};
  absl::StatusOr<std::optional<Job>> job = DecodeIf(in.has_job(), in.job());
  if (!job.ok()) return job.status();
  wait.job = *job;
  wait.for_ns = in.for_ns();
  wait.further = static_cast<int32_t>(in.further());
  if (in.has_root()) wait.root = static_cast<int32_t>(in.root());
  wait.chain.assign(in.chain().begin(), in.chain().end());
  if (!in.has_maker()) return wait;
  const absl::StatusOr<Job> maker = Decode(in.maker());
  if (!maker.ok()) return maker.status();
  const absl::StatusOr<TensorKind> tensor = TensorNamed(in.tensor());
  if (!tensor.ok()) return tensor.status();
  wait.missing = MissingInput{*tensor, *maker, static_cast<Rank>(in.maker_rank())};
  return wait;
}

void EncodeRoot(const WaitRoot& root, v1::WaitRoot* out) {
  out->set_kind(root.kind);
  if (root.rank >= 0) out->set_rank(static_cast<uint32_t>(root.rank));
  out->set_process(static_cast<uint32_t>(root.process));
  if (root.job.has_value()) Encode(*root.job, out->mutable_job());
  out->set_for_ns(root.for_ns);
  out->set_sentence(PlainText(root.sentence, kMaxTextBytes));
}

absl::StatusOr<WaitRoot> DecodeRoot(const v1::WaitRoot& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckName("roots.kind", in.kind()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("roots.rank", in.rank(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("roots.process", in.process(), kMaxProcesses));
  const absl::StatusOr<std::optional<Job>> job = DecodeIf(in.has_job(), in.job());
  if (!job.ok()) return job.status();
  return WaitRoot{in.kind(),
                  in.has_rank() ? static_cast<Rank>(in.rank()) : -1,
                  static_cast<int32_t>(in.process()),
                  *job,
                  in.for_ns(),
                  PlainText(in.sentence(), kMaxTextBytes)};
}

}  // namespace

void Encode(const Job& job, v1::Job* out) {
  out->set_kind(std::string(JobKindName(job.kind)));
  out->set_step(static_cast<uint32_t>(job.step));
  out->set_stage(static_cast<uint32_t>(job.stage));
  out->set_part(static_cast<uint32_t>(HasMicrobatch(job.kind) ? job.microbatch : job.member));
}

absl::StatusOr<Job> Decode(const v1::Job& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("job.step", in.step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("job.stage", in.stage(), kMaxStages - 1));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("job.part", in.part(), kMaxParts));
  const std::optional<JobKind> kind = JobKindOfName(in.kind());
  if (!kind.has_value()) return absl::InvalidArgumentError("job.kind is not known");
  const auto part = static_cast<int32_t>(in.part());
  const bool computes = HasMicrobatch(*kind);
  return Job{static_cast<int32_t>(in.step()), static_cast<int32_t>(in.stage()), computes ? part : -1,
             computes ? 0 : part, *kind};
}

void Encode(const RunWaits& waits, v1::WaitsResponse* out) {
  out->set_run(waits.run);
  out->set_name(CleanText(waits.name, kMaxTextBytes));
  out->set_state(static_cast<v1::RunState>(static_cast<int>(waits.state) + 1));
  out->set_reason(PlainText(waits.reason, kMaxTextBytes));
  if (waits.still_ns >= 0) out->set_still_ns(waits.still_ns);
  for (const WaitRoot& root : waits.roots) EncodeRoot(root, out->add_roots());
  for (const RankWait& wait : waits.ranks) EncodeRank(wait, out->add_ranks());
}

absl::StatusOr<RunWaits> Decode(const v1::WaitsResponse& in) {
  if (in.state() < v1::RUN_STATE_SUBMITTED || in.state() > v1::RUN_STATE_CANCELLED)
    return absl::InvalidArgumentError("waits.state is not known");
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of ranks", in.ranks_size(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of roots", in.roots_size(), kMaxRanks));
  RunWaits waits{in.run(), CleanText(in.name(), kMaxTextBytes),
                 static_cast<RunState>(static_cast<int>(in.state()) - 1),
                 PlainText(in.reason(), 4 * kMaxTextBytes)};
  if (in.has_still_ns()) waits.still_ns = in.still_ns();
  for (const v1::WaitRoot& r : in.roots()) {
    absl::StatusOr<WaitRoot> root = DecodeRoot(r);
    if (!root.ok()) return root.status();
    waits.roots.push_back(*std::move(root));
  }
  for (const v1::RankWait& r : in.ranks()) {
    absl::StatusOr<RankWait> wait = DecodeRank(r, in.roots_size());
    if (!wait.ok()) return wait.status();
    waits.ranks.push_back(*std::move(wait));
  }
  return waits;
}

}  // namespace weft::wire
