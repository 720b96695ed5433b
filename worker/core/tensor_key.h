// Names one tensor on its way from the job that made it to the rank that needs it.
//
// Both sides of a transfer derive the same key from the job graph, so that a consumer can ask for a tensor
// before it exists and no order of sends and receives has to be agreed on. A key never repeats: the epoch
// separates attempts of one run.
#ifndef WEFT_WORKER_CORE_TENSOR_KEY_H_
#define WEFT_WORKER_CORE_TENSOR_KEY_H_

#include <compare>
#include <cstdint>
#include <string>

#include "schedules/job.h"

namespace weft {

struct TensorKey {
  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t step = 0;
  int32_t stage = 0;        // stage of the job that made it
  int32_t microbatch = -1;  // -1: not of one micro-batch
  int32_t version = 0;      // version of the weights that it holds or was made with
  int32_t part = 0;         // slice number of gradients; of an order edge, the number of its consumer
  Rank producer = 0;
  Rank consumer = 0;
  TensorKind kind = TensorKind::kActivation;
  uint8_t use = 0;  // JobKind of the consuming job: forward and backward may each fetch the same weights

  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const TensorKey& k) {
    return H::combine(std::move(h), k.run, k.epoch, k.step, k.stage, k.microbatch, k.version, k.part,
                      k.producer, k.consumer, k.kind, k.use);
  }
};

// Returns "activation of step 3, stage 1, micro-batch 5 for rank 2": for messages to people.
std::string Describe(const TensorKey& key);

}  // namespace weft

#endif  // WEFT_WORKER_CORE_TENSOR_KEY_H_
