#include "run/stage_buffers.h"

#include <algorithm>
#include <set>
#include <variant>

#include "run/model_layers.h"

namespace weft {
namespace {

class StageBufferCount {
 public:
  StageBufferCount(const RunSpec& run, const std::vector<LayerCount>& layers, const StageLinks& links)
      : run_(run), layers_(layers), links_(links), element_(ComputeBytes(run.precision)) {
    for (int l = links.first_layer; l < links.end_layer; ++l) {
      buffers_.push_back(Measured(l));
    }
    for (const int input : links.inputs) input_gradients_ += Output(input);
    if (links.consumers > 1) summed_ = Output(links.end_layer - 1);
    waiting_ = WaitingGradients();
  }

  StageBuffers Count() const {
    StageBuffers stage;
    stage.forward = Forward();
    stage.forward_once = ForwardOnce();
    stage.backward = summed_ + Backward(&LayerBuffers::backward, /*frees=*/false);
    stage.backward_beyond =
        std::min(stage.backward, summed_ + Backward(&LayerBuffers::backward_beyond, /*frees=*/true));
    stage.gradients = summed_ + AtEnd(/*frees=*/false, /*inputs=*/true);
    for (const LayerBuffers& layer : buffers_) stage.update += layer.update;
    // Nobody waits for a gradient of the data: the second half is the whole backward.
    if (links_.inputs.empty()) {
      stage.backward_weight = stage.backward;
      return stage;
    }
    stage.backward_input = summed_ + BackwardInput();
    stage.backward_weight = Backward(&LayerBuffers::backward_weight, /*frees=*/false);
    // A layer that reads no input of the stage runs whole, in the second half.
    if (!AllReachInputs()) {
      stage.backward_weight = std::max(stage.backward_weight, stage.backward);
      stage.backward_input = std::max(stage.backward_input, stage.backward);
    }
    stage.between = summed_ + Between(&LayerBuffers::between);
    stage.between_beyond = summed_ + Between(&LayerBuffers::between_beyond);
    return stage;
  }

 private:
  const LayerBuffers& Of(int layer) const { return buffers_[layer - links_.first_layer]; }
  int64_t Output(int layer) const {
    return AlignedBytes(element_ * layers_[layer].output.elements(run_.microbatch_samples()));
  }
  int64_t Inputs(int layer) const {
    int64_t bytes = 0;
    for (const int input : layers_[layer].inputs) bytes += Output(input);
    return bytes;
  }
  bool IsInside(int layer) const { return layer >= links_.first_layer && layer < links_.end_layer; }

  // Returns the layer's figures for micro-batches of the run. A part does not depend on the samples, so
  // figures of smaller micro-batches are taken in proportion, and those of larger ones as they are.
  LayerBuffers Measured(int layer) const {
    LayerBuffers buffers = run_.buffers->layers[layer];
    const double factor = static_cast<double>(run_.microbatch_samples()) / run_.buffers->samples;
    if (factor == 1) return buffers;
    if (factor < 1) return OfLarger(layer, buffers);
    // A figure of a file may be anything.
    for (const LayerBuffersField& field : kLayerBuffersFields)
      buffers.*field.bytes =
          WholeBytes(std::min(kMaxBufferBytes, static_cast<double>(buffers.*field.bytes) * factor));
    return buffers;
  }

  // Returns the figures that larger micro-batches measured as those of the run's. Some are net of activations
  // that the layer keeps or frees. A smaller micro-batch has fewer of them to take off, so such a figure may
  // be larger than what was measured: by the difference of what the layer keeps, at most. A backward takes no
  // new activations, so it takes no more than buffers.
  LayerBuffers OfLarger(int layer, LayerBuffers measured) const {
    const int64_t then = KeptTensorBytes(layers_, layer, layer + 1, run_.buffers->samples);
    // A single sample's data may be one tensor for several layers, which none of them frees.
    const int64_t less = then - (layers_[layer].reads_data ? 0 : Kept(layer));
    measured.forward += less;
    measured.backward_beyond = std::min(measured.backward, measured.backward_beyond + less);
    measured.between_beyond = std::min(measured.between, measured.between_beyond + less);
    return measured;
  }

  // Returns, by layer of the stage, the bytes of gradients of outputs that are there while its backward runs:
  // some layer behind it has made them. Where it adds to one, the sum is a further tensor.
  std::vector<int64_t> WaitingGradients() const {
    std::vector<int64_t> waiting(buffers_.size());
    std::set<int> made;
    int64_t bytes = 0;
    for (int l = links_.end_layer - 1; l >= links_.first_layer; --l) {
      int64_t sums = 0;
      for (const int input : layers_[l].inputs) sums += made.count(input) > 0 ? Output(input) : 0;
      waiting[l - links_.first_layer] = bytes + sums;
      if (made.erase(l) > 0) bytes -= Output(l);
      for (const int input : layers_[l].inputs) bytes += made.insert(input).second ? Output(input) : 0;
    }
    return waiting;
  }
  int64_t Waiting(int layer) const { return waiting_[layer - links_.first_layer]; }

  // An exported model's activations are known from above only: more may be there while it runs than at the
  // end, by outputs that nobody keeps.
  int64_t Forward() const {
    int64_t most = 0;
    for (const LayerBuffers& layer : buffers_) most = std::max(most, layer.forward);
    if (!IsExported()) return most;
    for (int l = links_.first_layer; l + 1 < links_.end_layer; ++l) most += Output(l);
    return most;
  }

  int64_t ForwardOnce() const {
    const int end = links_.end_layer;
    std::vector<int> last_reader(buffers_.size(), -1);
    for (int l = links_.first_layer; l < end; ++l) {
      for (const int input : layers_[l].inputs)
        if (IsInside(input)) last_reader[input - links_.first_layer] = l;
    }
    std::vector<int64_t> ends(buffers_.size(), 0);  // bytes whose last reader is the layer
    int64_t alive = 0, most = 0;
    for (int l = links_.first_layer; l < end; ++l) {
      most = std::max(most, alive + Kept(l) + Of(l).forward);
      const int reader = last_reader[l - links_.first_layer];
      if (reader >= 0) ends[reader - links_.first_layer] += Output(l);
      alive += Output(l) - ends[l - links_.first_layer];
    }
    return std::max<int64_t>(0, most - Output(end - 1));
  }

  int64_t Kept(int layer) const {
    return KeptTensorBytes(layers_, layer, layer + 1, run_.microbatch_samples());
  }
  bool IsExported() const { return std::holds_alternative<ExportedSpec>(run_.model); }

  // Returns the bytes of activations that are certain to be free once the layer's backward has run.
  int64_t Freed(int layer) const {
    // A single sample's data may be one tensor for several layers.
    if (IsExported() || layers_[layer].reads_data) return 0;
    const bool leaves = layer + 1 == links_.end_layer;  // its output: the consumer may have it
    return std::max<int64_t>(0, Kept(layer) - (leaves ? Output(layer) : 0));
  }

  // Returns the most of a backward, or a second half, whose layers take `figure`. `frees`: that counts what
  // is freed.
  int64_t Backward(int64_t LayerBuffers::*figure, bool frees) const {
    // A second half makes gradients of parameters alone.
    const bool second = figure == &LayerBuffers::backward_weight;
    int64_t most = 0, behind = 0;
    for (int l = links_.end_layer - 1; l >= links_.first_layer; --l) {
      const int64_t own = Of(l).*figure;
      most = std::max(most, behind + (second ? 0 : Waiting(l)) + own);
      behind += layers_[l].gradient_bytes - (frees ? Freed(l) : 0);
    }
    return std::max(most, AtEnd(frees, /*inputs=*/!second));
  }

  // Returns the bytes at the end of a backward: all gradients are there, and those that are not contiguous
  // are copied one by one. `inputs`: also those of inputs.
  int64_t AtEnd(bool frees, bool inputs) const {
    int64_t bytes = inputs ? input_gradients_ : 0, copy = 0;
    for (int l = links_.first_layer; l < links_.end_layer; ++l) {
      bytes += layers_[l].gradient_bytes - (frees ? Freed(l) : 0);
      copy = std::max(copy, CopyOf(l, Of(l).backward - layers_[l].gradient_bytes - Inputs(l)));
    }
    return bytes + copy;
  }

  // Returns the bytes of a copy of one gradient that the layer makes: a part of what it took beyond them all.
  int64_t CopyOf(int layer, int64_t beyond) const {
    int64_t largest = layers_[layer].largest_gradient_bytes;
    for (const int input : layers_[layer].inputs) largest = std::max(largest, Output(input));
    return std::clamp<int64_t>(beyond, 0, largest);
  }

  // Returns what the first half of a layer leaves: the gradients that arrive at parameters' places, one of
  // which may be that of an output within the stage.
  int64_t LeftBy(int layer, int64_t LayerBuffers::*figure) const {
    return Of(layer).*figure + (layer + 1 < links_.end_layer ? Output(layer) : 0);
  }

  // Returns what the first halves of all layers leave.
  int64_t Between(int64_t LayerBuffers::*figure) const {
    int64_t bytes = 0;
    for (int l = links_.first_layer; l < links_.end_layer; ++l) bytes += LeftBy(l, figure);
    return bytes;
  }

  int64_t BackwardInput() const {
    int64_t most = 0, left = 0, copy = 0;
    for (int l = links_.end_layer - 1; l >= links_.first_layer; --l) {
      most = std::max(most, left + Waiting(l) + Of(l).backward_input);
      left += LeftBy(l, &LayerBuffers::between);
      copy = std::max(copy, CopyOf(l, Of(l).backward_input - Of(l).between - Inputs(l)));
    }
    return std::max(most, left + input_gradients_ + copy);
  }

  bool AllReachInputs() const {
    std::vector<bool> reaches;
    for (int l = links_.first_layer; l < links_.end_layer; ++l) {
      const std::vector<int>& inputs = layers_[l].inputs;
      reaches.push_back(std::any_of(inputs.begin(), inputs.end(), [&](int input) {
        return !IsInside(input) || reaches[input - links_.first_layer];
      }));
      if (!reaches.back()) return false;
    }
    return true;
  }

  const RunSpec& run_;
  const std::vector<LayerCount>& layers_;
  const StageLinks& links_;
  const int64_t element_;
  std::vector<LayerBuffers> buffers_;  // by layer of the stage
  std::vector<int64_t> waiting_;       // likewise
  int64_t input_gradients_ = 0;
  int64_t summed_ = 0;  // gradients of several consumers, which are there until the backward ends
};

}  // namespace

StageBuffers CountStageBuffers(const RunSpec& run, const std::vector<LayerCount>& layers,
                               const StageLinks& links) {
  return StageBufferCount(run, layers, links).Count();
}

}  // namespace weft
