#include "run/layer_operations.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr ParameterInit kOne{ParameterInit::Kind::kConstant, 1};

int64_t ProductOf(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// oneDNN's convolutions compute on blocks of 8 or 16 channels. A backward copies each image into such blocks
// at most twice, and a weight four times, and takes a little memory besides (measured on 250 random shapes of
// kernels 1, 3 and 7 under AVX2, AVX and SSE4.1).
constexpr int64_t kChannelsOfBlock = 16, kConvolutionScratch = int64_t{64} << 10;
int64_t InChannelBlocks(int64_t channels) {
  return (channels + kChannelsOfBlock - 1) / kChannelsOfBlock * kChannelsOfBlock;
}

// Returns "norm1.weight", or "weight" where the layer is the operation.
std::string PartOf(absl::string_view operation, absl::string_view part) {
  return operation.empty() ? std::string(part) : absl::StrCat(operation, ".", part);
}

}  // namespace

int64_t ParameterSpec::elements() const { return ProductOf(size); }

bool LayerSpec::reads_data() const {
  const auto* exported = std::get_if<ExportedLayerSpec>(&kind);
  if (exported != nullptr) return exported->reads_data();
  return inputs.empty() || std::holds_alternative<TokenEmbeddingSpec>(kind);
}

std::string NameInModel(const std::string& layer, const ParameterSpec& parameter) {
  return parameter.model_name.empty() ? absl::StrCat(layer, ".", parameter.name) : parameter.model_name;
}

int64_t LayerOutput::elements(int64_t samples) const {
  return sizes.empty() ? 0 : ProductOf(sizes) * (by_sample ? samples : 1);
}

void LayerOperations::Parameter(std::string name, std::vector<int64_t> size, ParameterInit init, bool wide) {
  parameters_.push_back({std::move(name), std::move(size), init, ParameterSpec::Kind::kTrained, wide});
}

void LayerOperations::ParameterOfFile(std::string name, std::vector<int64_t> size, std::string file,
                                      bool wide) {
  Parameter(name, std::move(size), kZeroInit, wide);
  parameters_.back().model_name = std::move(name);
  parameters_.back().file = std::move(file);
}

void LayerOperations::StatisticOfFile(std::string name, std::vector<int64_t> size, std::string file,
                                      float momentum) {
  ParameterOfFile(std::move(name), std::move(size), std::move(file));
  parameters_.back().kind = ParameterSpec::Kind::kStatistic;
  parameters_.back().momentum = momentum;
}

void LayerOperations::Linear(absl::string_view name, int64_t rows, int64_t in, int64_t out,
                             ParameterInit weight, std::optional<ParameterInit> bias) {
  Parameter(PartOf(name, "weight"), {out, in}, weight);
  if (bias.has_value()) Parameter(PartOf(name, "bias"), {out}, *bias);
  Product(rows, in, out);
}

void LayerOperations::Product(int64_t rows, int64_t in, int64_t out) {
  Flops(2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
}

void LayerOperations::Norm(absl::string_view name, int64_t rows, int64_t width) {
  Parameter(PartOf(name, "weight"), {width}, kOne);
  Parameter(PartOf(name, "bias"), {width}, kZeroInit);
  Keep(rows * width);
  Keep(rows);
  Keep(rows);
}

void LayerOperations::Convolution(const NormedConvolution& c) {
  // torchvision has the same initial weights: with them a ReLU's backward keeps the variance of gradients.
  const double fan_out = static_cast<double>(c.out * c.kernel * c.kernel);
  Parameter(PartOf(c.convolution, "weight"), {c.out, c.in, c.kernel, c.kernel},
            {ParameterInit::Kind::kNormal, std::sqrt(2 / fan_out)});
  Parameter(PartOf(c.norm, "weight"), {c.out}, kOne, /*wide=*/true);
  Parameter(PartOf(c.norm, "bias"), {c.out}, kZeroInit, /*wide=*/true);
  constexpr auto kStatistic = ParameterSpec::Kind::kStatistic;
  parameters_.push_back({PartOf(c.norm, "running_mean"), {c.out}, kZeroInit, kStatistic});
  parameters_.push_back({PartOf(c.norm, "running_var"), {c.out}, kOne, kStatistic});

  const int64_t places = c.out_side * c.out_side, taps = c.in * c.kernel * c.kernel;
  Product(places, taps, c.out);
  Keep(c.out * places);
  // These are the batch's mean and variance, each in two forms.
  for (int i = 0; i < 4; ++i) KeepBytes(0, kFloat * c.out);
  if (c.kernel == 1 && c.stride == 1) return;  // it is a product of matrices
  // A convolution either unfolds the image, one column for each place, or copies images and weights into
  // blocks of channels.
  const int64_t in = InChannelBlocks(c.in), out = InChannelBlocks(c.out);
  const int64_t copied = 2 * element_ * (in * c.in_side * c.in_side + out * places);
  convolution_work_ = std::max({convolution_work_, element_ * taps * places, copied});
  count_.work_fixed =
      std::max(count_.work_fixed, 4 * element_ * in * out * c.kernel * c.kernel + kConvolutionScratch);
}

void LayerOperations::Loss(int64_t rows, int64_t classes, int64_t gpu_columns) {
  const int64_t scores = rows * classes;
  KeepFloats(scores);
  KeepIntegers(rows);
  KeepBytes(0, kFloat);
  // The loss is float32: narrower scores and their gradient are there as well while it is made.
  if (narrow()) Work(2 * (element_ + kFloat) * scores);
  // There narrower scores are kept as they are, which is less than what has been counted.
  if (narrow()) return;
  count_.kept_on_gpu.push_back({kFloat * rows, 0});
  count_.kept_on_gpu.push_back({kFloat * rows * (gpu_columns - classes), 0});
}

void LayerOperations::KeepInput(int64_t numbers, std::optional<int64_t> all) {
  if (!reads_data_) return;
  Keep(numbers);
  if (all.has_value()) count_.kept.back().data_bytes = element_ * *all;
  if (narrow()) Work(kFloat * numbers);  // the data as they come, before they are narrowed
}

LayerCount LayerOperations::Count() const {
  LayerCount count = count_;
  count.work_bytes += convolution_work_;
  for (const ParameterSpec& parameter : parameters_) {
    const bool trained = parameter.kind == ParameterSpec::Kind::kTrained;
    const int64_t elements = parameter.elements();
    (trained ? count.parameters : count.statistics) += elements;
    (trained ? count.held_parameters : count.held_statistics) +=
        (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
    const int64_t gradient = AlignedBytes((parameter.is_wide() ? kFloat : element_) * elements);
    count.gradient_bytes += gradient;
    count.largest_gradient_bytes = std::max(count.largest_gradient_bytes, gradient);
  }
  return count;
}

int64_t KeptTensorBytes(const std::vector<LayerCount>& layers, int first, int end, int64_t samples) {
  int64_t bytes = 0, data = 0;
  for (int l = first; l < end; ++l) {
    for (const KeptTensor& tensor : layers[l].kept) {
      if (samples == 1 && tensor.data_bytes > 0) {
        data = AlignedBytes(tensor.data_bytes);
      } else {
        bytes += AlignedBytes(tensor.sample_bytes * samples + tensor.fixed_bytes);
      }
    }
  }
  return bytes + data;
}

int64_t BytesKeptOnGpu(const std::vector<LayerCount>& layers, int first, int end, int64_t samples) {
  int64_t bytes = 0;
  for (int l = first; l < end; ++l) {
    for (const KeptTensor& tensor : layers[l].kept_on_gpu)
      bytes += AlignedBytes(tensor.sample_bytes * samples + tensor.fixed_bytes);
  }
  return bytes;
}

}  // namespace weft
