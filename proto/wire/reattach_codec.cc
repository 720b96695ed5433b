#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft::wire {
namespace {

constexpr uint8_t kAskedSeal = 1, kAskedDrop = 2, kAskedValidate = 4, kAskedPassing = 8;

absl::Status DecodeRanks(const v1::Reattach& in, Reattach* m) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of reattach.rank", in.rank_size(), kMaxRanks));
  const int ranks = in.rank_size();
  if (in.token_size() != ranks || in.credit_size() != ranks || in.granted_size() != ranks)
    return absl::InvalidArgumentError("reattach: the columns of the ranks differ in length");
  for (int i = 0; i < ranks; ++i) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.rank", in.rank(i), kMaxRanks - 1));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.credit", in.credit(i), kMaxCredit));
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.granted", in.granted(i), INT64_MAX));
    m->ranks.push_back({static_cast<Rank>(in.rank(i)),
                        {m->epoch, in.token(i)},
                        static_cast<int32_t>(in.credit(i)),
                        static_cast<int64_t>(in.granted(i))});
  }
  return absl::OkStatus();
}

absl::Status DecodeAsked(const v1::Reattach& in, Reattach* m) {
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of reattach.snapshot", in.snapshot_size(), kMaxAskedSnapshots));
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of reattach.validation", in.validation_size(), kMaxAskedSnapshots));
  if (static_cast<int>(in.asked().size()) != in.snapshot_size())
    return absl::InvalidArgumentError("reattach: columns snapshot and asked differ in length");
  for (int i = 0; i < in.snapshot_size(); ++i) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.snapshot", in.snapshot(i), kMaxSteps));
    const auto asked = static_cast<uint8_t>(in.asked()[i]);
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.asked", asked, 15));
    m->snapshots.push_back({static_cast<int32_t>(in.snapshot(i)), (asked & kAskedSeal) != 0,
                            (asked & kAskedDrop) != 0, (asked & kAskedValidate) != 0,
                            (asked & kAskedPassing) != 0});
  }
  for (const uint32_t step : in.validation()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.validation", step, kMaxSteps));
    m->validations.push_back(static_cast<int32_t>(step));
  }
  return absl::OkStatus();
}

}  // namespace

void Encode(const Reattach& reattach, v1::Reattach* out) {
  out->set_run(reattach.run);
  out->set_epoch(reattach.epoch);
  out->set_run_id(reattach.run_id);
  out->set_ended(reattach.ended);
  out->set_sealed(reattach.sealed);
  out->set_validated(reattach.validated);
  for (const Reattach::HeldRank& r : reattach.ranks) {
    out->add_rank(r.rank);
    out->add_token(r.token.sequence);
    out->add_credit(r.credit);
    out->add_granted(r.granted);
  }
  std::string asked;
  for (const Reattach::AskedSnapshot& s : reattach.snapshots) {
    out->add_snapshot(s.step);
    asked.push_back(static_cast<char>((s.seal ? kAskedSeal : 0) | (s.drop ? kAskedDrop : 0) |
                                      (s.validate ? kAskedValidate : 0) | (s.passing ? kAskedPassing : 0)));
  }
  out->set_asked(std::move(asked));
  for (const int32_t step : reattach.validations) out->add_validation(step);
}

absl::StatusOr<Reattach> Decode(const v1::Reattach& in) {
  if (!in.run_id().empty()) WEFT_WIRE_RETURN_IF_ERROR(CheckName("reattach.run_id", in.run_id()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("reattach.ended", in.ended(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckStepOrNone("reattach.sealed", in.sealed()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckStepOrNone("reattach.validated", in.validated()));
  Reattach m;
  m.run = in.run();
  m.epoch = in.epoch();
  m.run_id = in.run_id();
  m.ended = static_cast<int32_t>(in.ended());
  m.sealed = in.sealed();
  m.validated = in.validated();
  WEFT_WIRE_RETURN_IF_ERROR(DecodeRanks(in, &m));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeAsked(in, &m));
  return m;
}

}  // namespace weft::wire
