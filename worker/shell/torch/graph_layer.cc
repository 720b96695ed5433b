#include "worker/shell/torch/graph_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "worker/shell/torch/graph_program.h"
#include "worker/shell/torch/pass_numbers.h"
#include "worker/shell/torch/plugins.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

// Returns a field of the data, which are the bytes of all fields of each sample. It is a copy: kernels may
// take another way for tensors that begin elsewhere in memory.
at::Tensor FieldOf(const at::Tensor& data, const ExportedField& field) {
  const at::Tensor bytes = data.narrow(1, field.begin, field.bytes).clone(c10::MemoryFormat::Contiguous);
  std::vector<int64_t> sizes = {data.size(0)};
  sizes.insert(sizes.end(), field.sizes.begin(), field.sizes.end());
  return bytes.view(TorchTypeOf(field.type)).view(sizes);
}

class GraphLayer final : public Layer {
 public:
  GraphLayer(const ExportedLayerSpec& spec, int index) : spec_(spec), index_(index) {}

  at::Tensor Forward(const at::Tensor* inputs, const at::Tensor* parameters,
                     const MaskKey& key) const override {
    const size_t layers = spec_.graph().layers.size();
    std::vector<at::Tensor> given(inputs, inputs + layers);
    const at::Tensor data = spec_.reads_data() ? inputs[layers] : at::Tensor();
    const bool evaluates = !spec_.model->figures.empty();
    if (c10::GradMode::is_enabled() || evaluates) return Run(std::move(given), data, parameters, key);
    at::AutoGradMode with_graph(true);
    for (at::Tensor& input : given) input = input.detach().set_requires_grad(true);
    return Run(std::move(given), data, parameters, key).detach();
  }

  absl::Status Prepare(int64_t samples, c10::Device device) const override {
    return ProgramFor({has_samples() ? samples : 0, device}).status();
  }

  absl::Status CheckCapturable() const override {
    MutexLock lock(mutex_);
    return program_->CheckCapturable();
  }
  int dropout_sites() const override {
    MutexLock lock(mutex_);
    return program_->dropout_sites();
  }

 private:
  // `given`: the outputs of the layers that it reads.
  at::Tensor Run(std::vector<at::Tensor> given, const at::Tensor& data, const at::Tensor* parameters,
                 const MaskKey& key) const {
    const ExportedLayer& graph = spec_.graph();
    const GraphPlace place = {SamplesOf(given, data), (data.defined() ? data : given[0]).device()};
    const size_t own = graph.parameters.size() + graph.statistics.size();
    given.reserve(given.size() + graph.fields.size() + own);
    for (const int field : graph.fields) given.push_back(FieldOf(data, spec_.model->fields[field]));
    given.insert(given.end(), parameters, parameters + own);
    const auto program = ProgramFor(place);
    ThrowUnlessOk(program.status());
    const at::Tensor output = (*program)->Run(given, key, index_);
    return is_sum_of_losses() ? output / DivisorOf(key, output) : output;
  }

  // Returns the number by which the sum is divided, in the device's memory: a GPU divides otherwise, with
  // other bits, by a number of the host.
  static at::Tensor DivisorOf(const MaskKey& key, const at::Tensor& sum) {
    if (key.numbers != nullptr) return key.numbers->LossDivisor();
    return at::full({}, key.loss_divisor, sum.options().requires_grad(false));
  }

  bool is_sum_of_losses() const {
    return spec_.model->count != nullptr && &spec_.graph() == &spec_.model->layers.back();
  }

  // Returns the samples of what it reads; 0 if that has none.
  int64_t SamplesOf(const std::vector<at::Tensor>& layers, const at::Tensor& data) const {
    if (data.defined()) return data.size(0);
    for (size_t i = 0; i < layers.size(); ++i) {
      if (spec_.model->layers[spec_.graph().layers[i]].output_by_sample) return layers[i].size(0);
    }
    return 0;
  }

  // Returns true if what it reads has samples.
  bool has_samples() const {
    const std::vector<int>& layers = spec_.graph().layers;
    return spec_.reads_data() || std::any_of(layers.begin(), layers.end(), [this](int layer) {
             return spec_.model->layers[layer].output_by_sample;
           });
  }

  absl::StatusOr<std::shared_ptr<const GraphProgram>> ProgramFor(const GraphPlace& place) const {
    MutexLock lock(mutex_);
    if (program_ == nullptr || program_->place().samples != place.samples ||
        program_->place().device != place.device) {
      absl::StatusOr<std::unique_ptr<const GraphProgram>> made = GraphProgram::Make(spec_, place);
      if (!made.ok()) return made.status();
      program_ = *std::move(made);
    }
    return program_;
  }

  const ExportedLayerSpec spec_;
  const int index_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const GraphProgram> program_ ABSL_GUARDED_BY(mutex_);  // of the last place
};

at::Tensor WithoutBytes(int64_t samples, std::vector<int64_t> sizes, ElementType type) {
  if (samples > 0) sizes.insert(sizes.begin(), samples);
  return at::empty(sizes, c10::TensorOptions().dtype(TorchTypeOf(type)).device(c10::kMeta));
}

// Runs one layer on tensors without bytes, checks the type and the sizes of its output, and appends that to
// those of the layers before.
absl::Status CheckGraph(const ExportedLayerSpec& spec, int64_t samples, std::vector<c10::ScalarType> types,
                        std::vector<at::Tensor>* outputs) {
  const ExportedModel& model = *spec.model;
  const ExportedLayer& graph = spec.graph();
  const auto program = GraphProgram::Make(spec, {samples, c10::Device(c10::DeviceType::Meta)});
  if (!program.ok()) return program.status();
  std::vector<at::Tensor> given;
  for (const int number : graph.layers) given.push_back((*outputs)[number]);
  for (const int f : graph.fields)
    given.push_back(WithoutBytes(samples, model.fields[f].sizes, model.fields[f].type));
  for (const ExportedTensor& p : graph.parameters) given.push_back(WithoutBytes(0, p.sizes, p.type));
  for (const ExportedStatistic& s : graph.statistics)
    given.push_back(WithoutBytes(0, s.sizes, ElementType::kF32));
  MaskKey key;
  key.training = false;  // dropout changes no size
  const at::Tensor output = outputs->emplace_back((*program)->Run(given, key, 0));
  std::vector<int64_t> wanted = graph.output_sizes;
  if (graph.output_by_sample && &graph != &model.layers.back()) wanted.insert(wanted.begin(), samples);
  const bool right_type = std::find(types.begin(), types.end(), output.scalar_type()) != types.end();
  if (right_type && output.sizes() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("its output has the sizes [%s] of %s, and [%s] of %s are announced",
                      absl::StrJoin(output.sizes(), ", "), c10::toString(output.scalar_type()),
                      absl::StrJoin(wanted, ", "), c10::toString(types.front())));
}

// Checks one layer of the model, or of its count, as CheckGraph; a failure names the layer. Unimplemented if
// an operation has no form without bytes.
absl::Status CheckLayer(const ExportedSpec& exported, const std::shared_ptr<const ExportedModel>& model,
                        int layer, int64_t samples, std::vector<c10::ScalarType> types,
                        std::vector<at::Tensor>* outputs) {
  const ExportedLayerSpec spec{model, "", "", layer};
  absl::Status fits;
  try {
    fits = CheckGraph(spec, samples, std::move(types), outputs);
  } catch (const c10::NotImplementedError& error) {
    return absl::UnimplementedError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    fits = absl::InvalidArgumentError(error.what_without_backtrace());
  }
  if (fits.ok()) return fits;
  return absl::InvalidArgumentError(absl::StrCat("model.exported: ", exported.folder, ": layer ",
                                                 spec.graph().name, ": ", fits.message(),
                                                 "; export the model again"));
}

}  // namespace

std::unique_ptr<Layer> BuildGraphLayer(const ExportedLayerSpec& spec, int index) {
  return std::make_unique<GraphLayer>(spec, index);
}

absl::Status CheckGraphs(const RunSpec& run) {
  const auto* exported = std::get_if<ExportedSpec>(&run.model);
  if (exported == nullptr) return absl::OkStatus();
  at::NoGradGuard without_graph;
  const int64_t samples = run.microbatch_samples();
  std::vector<at::Tensor> outputs, counts, figures;
  absl::Status fits = LoadPlugins(exported->plugins);
  const int layers = static_cast<int>(exported->model->layers.size());
  for (int layer = 0; layer < layers && fits.ok(); ++layer) {
    const bool narrow = exported->model->narrow && layer + 1 < layers;
    fits = CheckLayer(*exported, exported->model, layer, samples, {narrow ? c10::kBFloat16 : c10::kFloat},
                      &outputs);
  }
  if (fits.ok() && exported->model->count != nullptr)
    fits = CheckLayer(*exported, exported->model->count, 0, samples, {c10::kLong, c10::kFloat}, &counts);
  if (fits.ok() && exported->model->evaluation != nullptr)
    fits = CheckLayer(*exported, exported->model->evaluation, 0, samples, {c10::kDouble}, &figures);
  // If an operation cannot run without data, the first forward checks the sizes.
  return absl::IsUnimplemented(fits) ? absl::OkStatus() : fits;
}

}  // namespace weft
