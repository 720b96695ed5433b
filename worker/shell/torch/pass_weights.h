// Puts weights under the passes of a stage: the held version, or a fetched copy that is here only while a job
// computes with it.
//
// A pass refers to its parameters by storage, not by bytes. So a fetched copy goes when its forward ends, and
// another copy of the same version comes under the same parameters for the backward, or for each of its
// halves:
//
//   none --Choose--> held, in use ------------------------------------> (the pass ends)
//   none --Choose--> fetched, bound --Unbind--> unbound --Rebind--> bound ..
//                                     unbound --GiveBack--> none
//
// Invariants:
//   1. Parameters are bound, to the version that the job reads, whenever LibTorch computes with them.
//   2. A held version that a pass uses is not written over (StageWeights::Use); a fetched one has no reader
//      but its pass.
//   3. Between the jobs of a pass, no bytes of a fetched copy are kept.
//
// Private to the adapter of LibTorch. No state of its own: it is in the pass, which one job at a time has.
// Failure: FailedPrecondition where a job came without weights that it needs, InvalidArgument for weights of
// another size, ResourceExhausted of the device.
#ifndef WEFT_WORKER_SHELL_TORCH_PASS_WEIGHTS_H_
#define WEFT_WORKER_SHELL_TORCH_PASS_WEIGHTS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/held_stage.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

class PassWeights {
 public:
  // Both outlive this.
  PassWeights(HeldStage& held, RankDevice& device) : held_(held), device_(device) {}

  // Sets the weights of a pass that has none: those that came with the job, else the held ones at the
  // version.
  absl::Status Choose(Tensor fetched, int version, Pass* pass);
  // Brings a copy back under a pass that ran on one: what came with the job, or a copy of the held ones. Does
  // nothing for other passes.
  absl::Status Rebind(Tensor fetched, int version, Pass* pass);
  // Takes a fetched copy away from under the pass, which may come again.
  static void Unbind(Pass* pass);
  // Gives the parameters of an unbound copy back, which the pass needs no more.
  void GiveBack(Pass* pass);

 private:
  absl::StatusOr<std::shared_ptr<StageWeights>> Held(int version) const;
  absl::StatusOr<Tensor> Aligned(Tensor fetched);

  HeldStage& held_;
  RankDevice& device_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_PASS_WEIGHTS_H_
