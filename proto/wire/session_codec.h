// Converts session messages between protobuf and values. This is the one place that validates what a peer
// says.
//
// Encoding writes into a message that the caller reuses, so that a stream allocates nothing in steady state.
// Decoding says InvalidArgument, with the message's and the field's name, for anything out of range; a
// decoded value can be trusted in its ranges, not in its meaning. Thread-safe: no state.
#ifndef WEFT_PROTO_WIRE_SESSION_CODEC_H_
#define WEFT_PROTO_WIRE_SESSION_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/session/link.h"
#include "proto/session/messages.h"
#include "proto/session/protocol_versions.h"
#include "weft/v1/report.pb.h"
#include "weft/v1/session.pb.h"

namespace weft::wire {

void Encode(const FromWorker& message, v1::WorkerPayload* out);
void Encode(const FromCoordinator& message, v1::CoordinatorPayload* out);
absl::StatusOr<FromWorker> Decode(const v1::WorkerPayload& in);
absl::StatusOr<FromCoordinator> Decode(const v1::CoordinatorPayload& in);

// Convert packets. A decoded packet belongs to `link`: a stream carries one session. A message with `open` is
// not a packet.
void Encode(const Packet<std::shared_ptr<const FromWorker>>& packet, v1::WorkerMessage* out);
void Encode(const Packet<std::shared_ptr<const FromCoordinator>>& packet, v1::CoordinatorMessage* out);
absl::StatusOr<Packet<FromWorker>> Decode(uint64_t link, const v1::WorkerMessage& in);
absl::StatusOr<Packet<FromCoordinator>> Decode(uint64_t link, const v1::CoordinatorMessage& in);

// Convert the versions that a side speaks. An `open` of a release that knows no ranges has one version.
void Encode(const ProtocolVersions& versions, v1::Open* out);
ProtocolVersions Decode(const v1::Open& in);

// Convert tokens and the ids of groups, for both directions.
void Encode(const Token& token, v1::Token* out);
Token Decode(const v1::Token& in);
void Encode(const Reattach& reattach, v1::Reattach* out);
absl::StatusOr<Reattach> Decode(const v1::Reattach& in);
void Encode(const GroupId& id, v1::GroupId* out);
absl::StatusOr<GroupId> Decode(const v1::GroupId& in);

// Shared with the run API.
void Encode(const Validation& validation, v1::Validation* out);
absl::StatusOr<Validation> Decode(const v1::Validation& in);
void Encode(const RankReport& report, v1::RankReport* out);
absl::StatusOr<RankReport> Decode(const v1::RankReport& in);
void Encode(const LogEntry& entry, v1::LogEntry* out);
absl::StatusOr<LogEntry> Decode(const v1::LogEntry& in);

}  // namespace weft::wire

#endif  // WEFT_PROTO_WIRE_SESSION_CODEC_H_
