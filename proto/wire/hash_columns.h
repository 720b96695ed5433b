// Packs the hashes of jobs as columns and unpacks them: about fifteen bytes a hash. Part of proto/wire.
#ifndef WEFT_PROTO_WIRE_HASH_COLUMNS_H_
#define WEFT_PROTO_WIRE_HASH_COLUMNS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/session/messages.h"
#include "weft/v1/session.pb.h"

namespace weft::wire {

// Appends the hashes of the job in row `row`. Call in the order of rows.
void AddHashes(int row, const std::vector<ValueHash>& hashes, v1::Completions* out);

// Gives the jobs, those of the message, their hashes. InvalidArgument if columns differ in length or a value
// is out of range.
absl::Status ReadHashes(const v1::Completions& in, std::vector<Completion>* jobs);

}  // namespace weft::wire

#endif  // WEFT_PROTO_WIRE_HASH_COLUMNS_H_
