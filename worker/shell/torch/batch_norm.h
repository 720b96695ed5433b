// Implements batch normalization whose running averages change in the stage's update, not in its forwards.
// Private to the adapter of LibTorch.
//
// In training a forward normalizes with the mean and variance of its own micro-batch, and changes nothing:
// forwards of one step run in any order, on any rank, more than once. The micro-batch's measurements, its
// mean and unbiased variance of each channel, come out of the backward as the "gradient" of the running
// averages (ParameterSpec::Kind::kStatistic), whatever gradient arrives there. So they are added up over the
// micro-batches b of a step in their order, in slices or whole, exactly as gradients are, and one update of
// the stage makes
//
// running = running * (1 - momentum) + (sum_b measured_b / B) * momentum
//
// in float32, each operation rounded once (stage_update.h). Gradients need no such division: the loss from
// which a backward starts is divided by B, and the measurements do not depend on it.
#ifndef WEFT_WORKER_SHELL_TORCH_BATCH_NORM_H_
#define WEFT_WORKER_SHELL_TORCH_BATCH_NORM_H_

#include <ATen/core/Tensor.h>

namespace weft {

// Normalizes the channels (dimension 1) of `x`. `parameters`: weight and bias, which may both be undefined,
// running mean, running variance. With `training` it uses the micro-batch's own mean and variance, of at
// least two values a channel; without, the running ones. Parameters are float32, also where x is bfloat16.
at::Tensor BatchNorm(const at::Tensor& x, const at::Tensor* parameters, double epsilon, bool training);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_BATCH_NORM_H_
