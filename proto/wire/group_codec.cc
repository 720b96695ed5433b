#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft::wire {

void Encode(const Token& token, v1::Token* out) {
  out->set_epoch(token.epoch);
  out->set_sequence(token.sequence);
}

Token Decode(const v1::Token& in) { return {in.epoch(), in.sequence()}; }

void Encode(const GroupId& id, v1::GroupId* out) {
  out->set_run(id.run);
  out->set_epoch(id.epoch);
  out->set_group(id.group);
  out->set_id(id.bytes);
}

absl::StatusOr<GroupId> Decode(const v1::GroupId& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("group_id.group", in.group(), kMaxStages - 1));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("group_id.id", in.id(), kMaxGroupIdBytes));
  return GroupId{in.run(), in.epoch(), static_cast<int32_t>(in.group()), in.id()};
}

}  // namespace weft::wire
