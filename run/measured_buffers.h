// Holds what the jobs of each layer take of a rank's memory while they run, as a profile measured it.
//
// `weft profile` trains each layer as a stage alone, on a rank that does one job at a time, and the rank's
// allocator says what each job took. What a job allocates depends on its shapes alone, so the figures hold
// for every run of the same layers, precision, kernels and kind of device. They travel with the run, in its
// key `buffers`. stage_buffers.h puts layers together into stages. Pure.
#ifndef WEFT_RUN_MEASURED_BUFFERS_H_
#define WEFT_RUN_MEASURED_BUFFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

inline constexpr double kMaxBufferBytes = 1e15;  // largest figure in a file

// Returns the figure of a file as whole bytes: a fraction is one more.
int64_t WholeBytes(double bytes);

// Bytes that the jobs of one layer take, under `activations: retain`.
struct LayerBuffers {
  int64_t forward = 0;  // buffers of a forward, beyond what it keeps
  // Buffers of a whole backward, beyond those when it begins; and the same of buffers and activations
  // together, less what it has freed meanwhile.
  int64_t backward = 0, backward_beyond = 0;
  int64_t backward_input = 0, backward_weight = 0;  // buffers of the halves of a split backward
  // Buffers that the first half leaves for the second; and the same of both, less what it has freed.
  int64_t between = 0, between_beyond = 0;
  int64_t update = 0;  // buffers of an update
};

// The figures of a layer with their names: in the run file's `buffers`, and, longer, in a profile.
struct LayerBuffersField {
  const char* name;
  const char* in_profile;
  int64_t LayerBuffers::*bytes;
};
inline constexpr std::array<LayerBuffersField, 8> kLayerBuffersFields = {
    {{"forward", "forward_buffer_bytes", &LayerBuffers::forward},
     {"backward", "backward_buffer_bytes", &LayerBuffers::backward},
     {"backward_beyond", "backward_beyond_bytes", &LayerBuffers::backward_beyond},
     {"backward_input", "backward_input_buffer_bytes", &LayerBuffers::backward_input},
     {"backward_weight", "backward_weight_buffer_bytes", &LayerBuffers::backward_weight},
     {"between", "between_buffer_bytes", &LayerBuffers::between},
     {"between_beyond", "between_beyond_bytes", &LayerBuffers::between_beyond},
     {"update", "update_buffer_bytes", &LayerBuffers::update}}};

struct MeasuredBuffers {
  int samples = 1;       // of the micro-batches that were measured
  int64_t standing = 0;  // bytes that a rank has while no job runs, as work memory of a GPU's libraries
  std::vector<LayerBuffers> layers;
};

// Reads the run file's key `buffers`, of a model with so many layers.
MeasuredBuffers ReadMeasuredBuffers(const nlohmann::json& value, size_t layers, absl::Status& status);
nlohmann::json ToJson(const MeasuredBuffers& buffers);

}  // namespace weft

#endif  // WEFT_RUN_MEASURED_BUFFERS_H_
