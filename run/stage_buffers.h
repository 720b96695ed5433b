// Puts the measured buffers of layers together into those of a stage.
//
// A stage runs its layers one after the other, and each takes what it takes alone. Beside it, the stage has
//
//   - in a forward: nothing but what the layers before it keep, which is counted as activations;
//   - in a backward: the gradients of the parameters of the layers behind it, which stay until the end; and
//     gradients of outputs within the stage whose layer has not used them. What the layers behind it kept is
//     free again.
//
// So each figure is the largest, over the layers, of such a sum: an upper bound, which is reached where the
// layer at the maximum is alone in its stage. Pure.
#ifndef WEFT_RUN_STAGE_BUFFERS_H_
#define WEFT_RUN_STAGE_BUFFERS_H_

#include <cstdint>
#include <vector>

#include "run/layer_spec.h"
#include "run/measured_buffers.h"
#include "run/run_spec.h"
#include "run/stage_cut.h"

namespace weft {

// Bytes that jobs of a stage take under `activations: retain`: buffers, unless a member says otherwise.
struct StageBuffers {
  int64_t forward = 0;  // of a forward, beyond what it keeps
  // Bytes of a forward that makes no graph, beyond its output.
  int64_t forward_once = 0;
  int64_t backward = 0;         // of a whole backward
  int64_t backward_beyond = 0;  // of it, with activations, less what it has freed of them meanwhile
  int64_t backward_input = 0, backward_weight = 0;
  // Bytes that the first half of a backward leaves for the second; and with activations, less what it has
  // freed.
  int64_t between = 0, between_beyond = 0;
  // Bytes of the gradients of parameters and inputs, with a copy of one, at the end of a backward.
  int64_t gradients = 0;
  int64_t update = 0;
};

// Counts a stage of a run that has measured buffers.
StageBuffers CountStageBuffers(const RunSpec& run, const std::vector<LayerCount>& layers,
                               const StageLinks& links);

}  // namespace weft

#endif  // WEFT_RUN_STAGE_BUFFERS_H_
