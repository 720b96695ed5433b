// Packs intervals of idleness and of transfers as columns and unpacks them: a few bytes each. Part of
// proto/wire.
#ifndef WEFT_PROTO_WIRE_SPAN_COLUMNS_H_
#define WEFT_PROTO_WIRE_SPAN_COLUMNS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/session/messages.h"
#include "weft/v1/report.pb.h"

namespace weft::wire {

// Pack intervals. Their start_ns ascend or not; ends are not before starts.
void Encode(const std::vector<IdleSpan>& spans, v1::IdleSpans* out);
void Encode(const std::vector<TransferSpan>& spans, v1::TransferSpans* out);

// Unpack intervals. InvalidArgument if columns differ in length, are too long, or a value is out of range.
absl::Status Decode(const v1::IdleSpans& in, std::vector<IdleSpan>* spans);
absl::Status Decode(const v1::TransferSpans& in, std::vector<TransferSpan>* spans);

}  // namespace weft::wire

#endif  // WEFT_PROTO_WIRE_SPAN_COLUMNS_H_
