#include "worker/shell/compute/optimizer.h"

#include <cmath>

namespace weft {
namespace {

SgdStep StepOf(const SgdSpec& s, double lr, int64_t t) {
  return {static_cast<float>(lr), static_cast<float>(s.momentum), static_cast<float>(s.weight_decay), t == 1};
}

AdamWStep StepOf(const AdamWSpec& s, double lr, int64_t t) {
  const double steps = static_cast<double>(t);
  return {static_cast<float>(1 - lr * s.weight_decay),
          static_cast<float>(s.beta1),
          static_cast<float>(1 - s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(1 - s.beta2),
          static_cast<float>(s.eps),
          static_cast<float>(lr / (1 - std::pow(s.beta1, steps))),
          static_cast<float>(std::sqrt(1 - std::pow(s.beta2, steps)))};
}

}  // namespace

std::vector<const char*> Optimizer::state_names() const {
  if (std::holds_alternative<AdamWSpec>(spec_)) return {"exp_avg", "exp_avg_sq"};
  if (std::get<SgdSpec>(spec_).momentum == 0) return {};
  return {"momentum_buffer"};
}

void Optimizer::Begin(double learning_rate) {
  ++steps_;
  step_ = StepFor(learning_rate, /*decays=*/true);
  step_without_decay_ = StepFor(learning_rate, /*decays=*/false);
}

Optimizer::Step Optimizer::StepFor(double learning_rate, bool decays) const {
  return std::visit(
      [&](auto spec) -> Step {
        if (!decays) spec.weight_decay = 0;
        return StepOf(spec, learning_rate, steps_);
      },
      spec_);
}

void Optimizer::Apply(const FlatMath& math, const float* weights, float* out, const float* gradient,
                      const State& state, const float* factor, int64_t n, bool decays) const {
  const Step& step = decays ? step_ : step_without_decay_;
  if (const auto* sgd = std::get_if<SgdStep>(&step)) {
    math.Sgd(*sgd, weights, out, gradient, state[0], factor, n);
  } else {
    math.AdamW(std::get<AdamWStep>(step), weights, out, gradient, state[0], state[1], factor, n);
  }
}

}  // namespace weft
