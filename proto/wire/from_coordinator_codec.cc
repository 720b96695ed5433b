#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/job_columns.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"
#include "proto/wire/state_parts.h"

namespace weft::wire {
namespace {

struct CoordinatorEncoder {
  v1::CoordinatorPayload* out;

  void operator()(const Welcome& m) const {
    out->mutable_welcome()->set_epoch(m.epoch);
    out->mutable_welcome()->set_process(m.process);
  }
  void operator()(const Assign& m) const;
  void operator()(const Grant& m) const {
    v1::Grant* o = out->mutable_grant();
    o->set_run(m.run);
    o->set_rank(m.rank);
    Encode(m.token, o->mutable_token());
    JobColumnsWriter columns(static_cast<int>(m.jobs.size()), o->mutable_jobs());
    for (const Job& job : m.jobs) columns.Add(job);
  }
  void operator()(const Finish& m) const { out->mutable_finish()->set_run(m.run); }
  void operator()(const Abort& m) const {
    out->mutable_abort()->set_run(m.run);
    out->mutable_abort()->set_reason(CleanText(m.reason, kMaxTextBytes));
  }
  void operator()(const Shutdown& m) const {
    out->mutable_shutdown()->set_reason(CleanText(m.reason, kMaxTextBytes));
  }
  void operator()(const GroupId& m) const { Encode(m, out->mutable_group_id()); }
  void operator()(const TakeSnapshot& m) const {
    out->mutable_take_snapshot()->set_run(m.run);
    out->mutable_take_snapshot()->set_step(m.step);
  }
  void operator()(const SealCheckpoint& m) const {
    v1::SealCheckpoint* o = out->mutable_seal_checkpoint();
    o->set_run(m.run);
    o->set_step(m.step);
    o->set_keep(m.keep);
    o->set_drop(m.drop);
    o->set_validate(m.validate);
    o->set_passing(m.passing);
  }
  void operator()(const Validate& m) const {
    out->mutable_validate()->set_run(m.run);
    out->mutable_validate()->set_step(m.step);
  }
  void operator()(const DropCopies& m) const {
    out->mutable_drop_copies()->set_run(m.run);
    out->mutable_drop_copies()->set_epoch(m.epoch);
    out->mutable_drop_copies()->set_step(m.step);
  }
  void operator()(const Settled& m) const {
    v1::Settled* o = out->mutable_settled();
    o->set_run(m.run);
    o->set_epoch(m.epoch);
    o->set_ended(m.ended);
    o->set_sealed(m.sealed);
    o->set_validated(m.validated);
  }
  void operator()(const TellSpans& m) const { out->mutable_tell_spans()->set_run(m.run); }
};

void CoordinatorEncoder::operator()(const Assign& m) const {
  v1::Assign* o = out->mutable_assign();
  o->set_run(m.run);
  o->set_epoch(m.epoch);
  o->set_spec(m.spec);
  o->set_output(m.output);
  o->set_fast(m.reduction_mode == ReductionMode::kFast);
  o->set_reduction(CleanText(m.reduction, kMaxTextBytes));
  o->set_run_id(m.run_id);
  if (m.examined_step >= 0) o->set_examined_step(static_cast<uint32_t>(m.examined_step));
  o->set_watched_before(static_cast<uint32_t>(m.watched_before));
  for (const RankLease& lease : m.leases) {
    v1::RankLease* l = o->add_leases();
    l->set_rank(lease.rank);
    Encode(lease.token, l->mutable_token());
  }
  o->mutable_process_of_rank()->Assign(m.process_of_rank.begin(), m.process_of_rank.end());
  o->set_copies(m.copies);
  o->set_copies_epoch(m.copies_epoch);
  for (const KeptPart& kept : m.kept) {
    o->add_kept_stage(kept.part.stage);
    o->add_kept_part(kept.part.part);
    o->add_kept_process(kept.process);
  }
  for (const Peer& peer : m.peers) {
    v1::Peer* p = o->add_peers();
    p->set_process(peer.process);
    p->set_address(peer.address);
    p->set_label(CleanText(peer.label, kMaxTextBytes));
  }
}

absl::Status DecodePeers(const v1::Assign& in, Assign* m) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of assign.peers", in.peers_size(), kMaxProcesses));
  for (const v1::Peer& p : in.peers()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("assign.peers.process", p.process(), kMaxProcesses - 1));
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("assign.peers.address", p.address(), kMaxAddressBytes));
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("assign.peers.label", p.label(), kMaxTextBytes));
    m->peers.push_back({static_cast<int32_t>(p.process()), p.address(), p.label()});
  }
  return absl::OkStatus();
}

absl::Status DecodeCopies(const v1::Assign& in, Assign* m) {
  m->copies = in.copies();
  m->copies_epoch = in.copies_epoch();
  std::vector<StatePart> parts;
  WEFT_WIRE_RETURN_IF_ERROR(DecodeParts("assign.kept", in.kept_stage(), in.kept_part(), &parts));
  if (in.kept_process_size() != static_cast<int>(parts.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign.kept has ", parts.size(), " parts and ", in.kept_process_size(), " processes"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint32_t process = in.kept_process(static_cast<int>(i));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("assign.kept_process", process, kMaxProcesses - 1));
    m->kept.push_back({parts[i], static_cast<int32_t>(process)});
  }
  return absl::OkStatus();
}

absl::StatusOr<FromCoordinator> DecodeAssign(const v1::Assign& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("assign.spec", in.spec(), kMaxSpecBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("assign.output", in.output(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("assign.reduction", in.reduction(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of assign.process_of_rank", in.process_of_rank_size(), kMaxRanks));
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of assign.leases", in.leases_size(), in.process_of_rank_size()));
  if (!in.run_id().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("assign.run_id", in.run_id()));
  Assign m;
  m.run = in.run();
  m.epoch = in.epoch();
  m.spec = in.spec();
  m.output = in.output();
  m.reduction_mode = in.fast() ? ReductionMode::kFast : ReductionMode::kOrdered;
  m.reduction = in.reduction();
  m.run_id = in.run_id();
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("assign.examined_step", in.examined_step(), kMaxSteps));
  if (in.has_examined_step()) m.examined_step = static_cast<int32_t>(in.examined_step());
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("assign.watched_before", in.watched_before(), kMaxSteps));
  m.watched_before = static_cast<int32_t>(in.watched_before());
  for (uint32_t process : in.process_of_rank()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("assign.process_of_rank", process, kMaxProcesses - 1));
    m.process_of_rank.push_back(static_cast<int32_t>(process));
  }
  for (const v1::RankLease& l : in.leases()) {
    if (l.rank() >= m.process_of_rank.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("assign.leases.rank ", l.rank(), " is not a rank of the run"));
    }
    m.leases.push_back({static_cast<Rank>(l.rank()), Decode(l.token())});
  }
  WEFT_WIRE_RETURN_IF_ERROR(DecodePeers(in, &m));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeCopies(in, &m));
  return FromCoordinator(std::move(m));
}

absl::StatusOr<FromCoordinator> DecodeGrant(const v1::Grant& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("grant.rank", in.rank(), kMaxRanks - 1));
  Grant m{in.run(), static_cast<Rank>(in.rank()), Decode(in.token()), {}};
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of jobs", in.jobs().kind().size(), kMaxJobs));
  m.jobs.resize(in.jobs().kind().size());
  WEFT_WIRE_RETURN_IF_ERROR(ReadJobs(in.jobs(), [&](int row, const Job& job) { m.jobs[row] = job; }));
  return FromCoordinator(std::move(m));
}

absl::StatusOr<FromCoordinator> DecodeTakeSnapshot(const v1::TakeSnapshot& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("take_snapshot.step", in.step(), kMaxSteps));
  return TakeSnapshot{in.run(), static_cast<int32_t>(in.step())};
}

absl::StatusOr<FromCoordinator> DecodeSealCheckpoint(const v1::SealCheckpoint& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("seal_checkpoint.step", in.step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("seal_checkpoint.keep", in.keep(), kMaxCheckpointsKept));
  return SealCheckpoint{
      in.run(),    static_cast<int32_t>(in.step()), static_cast<int32_t>(in.keep()), in.drop(), in.validate(),
      in.passing()};
}

absl::StatusOr<FromCoordinator> DecodeValidate(const v1::Validate& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validate.step", in.step(), kMaxSteps));
  return Validate{in.run(), static_cast<int32_t>(in.step())};
}

absl::StatusOr<FromCoordinator> DecodeDropCopies(const v1::DropCopies& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("drop_copies.step", in.step(), kMaxSteps));
  return DropCopies{in.run(), in.epoch(), static_cast<int32_t>(in.step())};
}

absl::StatusOr<FromCoordinator> DecodeSettled(const v1::Settled& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("settled.ended", in.ended(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckStepOrNone("settled.sealed", in.sealed()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckStepOrNone("settled.validated", in.validated()));
  return Settled{in.run(), in.epoch(), static_cast<int32_t>(in.ended()), in.sealed(), in.validated()};
}

absl::StatusOr<FromCoordinator> DecodeWelcome(const v1::Welcome& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("welcome.process", in.process(), kMaxProcesses - 1));
  return Welcome{in.epoch(), static_cast<int32_t>(in.process())};
}

absl::StatusOr<FromCoordinator> DecodeAbort(const v1::Abort& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("abort.reason", in.reason(), kMaxTextBytes));
  return Abort{in.run(), in.reason()};
}

absl::StatusOr<FromCoordinator> DecodeShutdown(const v1::Shutdown& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("shutdown.reason", in.reason(), kMaxTextBytes));
  return Shutdown{in.reason()};
}

}  // namespace

void Encode(const FromCoordinator& message, v1::CoordinatorPayload* out) {
  out->Clear();
  std::visit(CoordinatorEncoder{out}, message);
}

absl::StatusOr<FromCoordinator> Decode(const v1::CoordinatorPayload& in) {
  const int fields = in.has_welcome() + in.has_assign() + in.has_grant() + in.has_finish() + in.has_abort() +
                     in.has_shutdown() + in.has_group_id() + in.has_take_snapshot() +
                     in.has_seal_checkpoint() + in.has_validate() + in.has_drop_copies() + in.has_settled() +
                     in.has_tell_spans();
  if (fields != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a coordinator's payload holds ", fields, " known messages instead of one"));
  }
  if (in.has_grant()) return DecodeGrant(in.grant());
  if (in.has_welcome()) return DecodeWelcome(in.welcome());
  if (in.has_assign()) return DecodeAssign(in.assign());
  if (in.has_finish()) return Finish{in.finish().run()};
  if (in.has_take_snapshot()) return DecodeTakeSnapshot(in.take_snapshot());
  if (in.has_seal_checkpoint()) return DecodeSealCheckpoint(in.seal_checkpoint());
  if (in.has_settled()) return DecodeSettled(in.settled());
  if (in.has_drop_copies()) return DecodeDropCopies(in.drop_copies());
  if (in.has_validate()) return DecodeValidate(in.validate());
  if (in.has_abort()) return DecodeAbort(in.abort());
  if (in.has_tell_spans()) return TellSpans{in.tell_spans().run()};
  if (in.has_group_id()) {
    absl::StatusOr<GroupId> id = Decode(in.group_id());
    if (!id.ok()) return id.status();
    return FromCoordinator(*std::move(id));
  }
  return DecodeShutdown(in.shutdown());
}

void Encode(const Packet<std::shared_ptr<const FromCoordinator>>& packet, v1::CoordinatorMessage* out) {
  out->Clear();
  out->set_ack(packet.ack);
  out->set_first(packet.first);
  for (const auto& m : packet.messages) Encode(*m, out->add_payloads());
}

absl::StatusOr<Packet<FromCoordinator>> Decode(uint64_t link, const v1::CoordinatorMessage& in) {
  if (in.has_open())
    return absl::InvalidArgumentError("`open` is allowed only in the first message of a stream");
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of payloads", in.payloads_size(), kMaxPayloads));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("`first`", in.first(), UINT64_MAX / 2));
  Packet<FromCoordinator> packet{link, in.ack(), in.first(), {}};
  packet.messages.reserve(in.payloads_size());
  for (const v1::CoordinatorPayload& p : in.payloads()) {
    absl::StatusOr<FromCoordinator> m = Decode(p);
    if (!m.ok()) return m.status();
    packet.messages.push_back(*std::move(m));
  }
  return packet;
}

}  // namespace weft::wire
