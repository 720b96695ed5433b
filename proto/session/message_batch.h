// Batches messages: joins a message to an earlier one of its kind while both still wait to be written.
//
// While one write of a stream is in flight, completions and grants pile up. Joined, they travel as one batch
// of columns instead of one message each. So batches form by themselves, and no timer or fixed size is
// needed. Only messages with the same run, rank and token are joined, only among the last few, and never
// across a message of another kind, so the order of everything else is kept. Pure.
#ifndef WEFT_PROTO_SESSION_MESSAGE_BATCH_H_
#define WEFT_PROTO_SESSION_MESSAGE_BATCH_H_

#include <cstddef>
#include <deque>

#include "proto/session/messages.h"

namespace weft {

inline constexpr size_t kMaxBatchJobs = 4096;  // most jobs of one message
inline constexpr size_t kMaxHashedJobs = 64;   // likewise, of jobs with hashes

// Append the message to those that wait, or join it to one of them.
void AddToBatch(std::deque<FromWorker>* waiting, FromWorker message);
void AddToBatch(std::deque<FromCoordinator>* waiting, FromCoordinator message);

// Return a bound on the encoded size, for packets of bounded bytes.
size_t BytesOf(const FromWorker& message);
size_t BytesOf(const FromCoordinator& message);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_MESSAGE_BATCH_H_
