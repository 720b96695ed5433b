// Checks that the sends and receives that rows of actions name do not wait for each other for ever.
//
// torch.distributed.pipelining has them carried out in the order of their row, and two ranks exchange one
// tensor at a time (with NCCL a send ends when its receive has begun). An order that is sound for the compute
// actions alone can hang there: https://github.com/pytorch/pytorch/issues/172668 has two. Weft needs no such
// actions, and sends what has to be sent by itself; but rows that name them are meant to be what runs.
//
// Pure.
#ifndef WEFT_SCHEDULES_SIMULATOR_TRANSFER_ORDER_H_
#define WEFT_SCHEDULES_SIMULATOR_TRANSFER_ORDER_H_

#include <vector>

#include "absl/status/status.h"

namespace weft {

// A send or a receive of a row: `0SEND_F1`, `1RECV_B0`.
struct TransferAction {
  bool sends = false, of_forward = false;
  int stage = 0, microbatch = 0;
  int cell = 0;  // from 1
};

// Carries the actions out, those of a row in turn, a send and its receive together. One whose other end is in
// no other row is left out. InvalidArgument names the circle of those that wait for each other.
absl::Status CheckTransferOrder(const std::vector<std::vector<TransferAction>>& rows);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_TRANSFER_ORDER_H_
