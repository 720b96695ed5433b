// Gives the times by which a transfer is judged. Nothing here depends on when the tensor is made: a consumer
// may wait for that as long as it takes. Pure.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TIMES_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TIMES_H_

#include <cstdint>

namespace weft {

// Time in which a small message and its answer have arrived on a link that lives.
inline constexpr int64_t kAnswerTime = 1'000'000'000;
// Least and most time between two questions for the same tensor.
inline constexpr int64_t kAskAgain = 2'000'000'000, kAskSeldom = 8'000'000'000;
// Time after which a tensor that was not acknowledged is sent again though nobody asks.
inline constexpr int64_t kProbeTime = 30'000'000'000;

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TIMES_H_
