#include "tests/simulation/world_values.h"

#include <algorithm>
#include <utility>

namespace weft {

Value Mix(Value a, Value b) {
  a ^= b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2);
  a *= 0xbf58476d1ce4e5b9;
  return a ^ (a >> 31);
}

Value InitialWeights(int stage) { return Mix(0x57, static_cast<Value>(stage)); }
Value ForwardValue(const Job& j, Value input, Value weights) {
  return Mix(Mix(Mix(0xf0, static_cast<Value>(j.stage) * 1000 + static_cast<Value>(j.microbatch)), input),
             weights);
}
Value InputGradientValue(const Job& j, Value output, Value gradient, Value weights) {
  return Mix(
      Mix(Mix(Mix(0xb0, static_cast<Value>(j.stage) * 1000 + static_cast<Value>(j.microbatch)), output),
          gradient),
      weights);
}
Value GradientValue(Value input_gradient) { return Mix(0x6d, input_gradient); }
Value SliceValue(Value gradient, int part, int parts) {
  return parts == 1 ? gradient : Mix(gradient, 77 + part);
}
Value Joined(const std::vector<Value>& values, Value none) {
  Value joined = values.empty() ? none : values[0];
  for (size_t i = 1; i < values.size(); ++i) joined = Mix(joined, values[i]);
  return joined;
}
Value PartOfInput(Value input_gradient, int i) { return i == 0 ? input_gradient : Mix(input_gradient, i); }
Value NormValue(Value sum) { return Mix(0x4e, sum); }
Value Updated(Value weights, const std::vector<Value>& sums) {
  Value v = Mix(0x0d, weights);
  for (Value s : sums) v = Mix(v, s);
  return v;
}

Value WholeWeights(const std::vector<Value>& slices) {
  Value whole = slices[0];
  for (size_t part = 1; part < slices.size(); ++part) whole = Mix(Mix(whole, 0x51), slices[part]);
  return whole;
}
size_t SlicesOf(const Graph& graph, int stage) {
  return (graph.protocol(0).layout() == Layout::kSliced) ? graph.members(stage).size() : 1;
}

std::vector<Held> PlainLoop(const Graph& graph, int steps) {
  const int stages = graph.schedule().stages, microbatches = graph.schedule().microbatches;
  Held held(stages);
  std::vector<Held> versions;
  for (int s = 0; s < stages; ++s) {
    const int slices = static_cast<int>(SlicesOf(graph, s));
    for (int p = 0; p < slices; ++p) held[s].push_back(SliceValue(InitialWeights(s), p, slices));
  }
  // These are the weights that each stage computed with, by version.
  std::vector<std::vector<Value>> whole(stages);
  for (int t = 0; t < steps; ++t) {
    versions.push_back(held);
    for (int s = 0; s < stages; ++s) whole[s].push_back(WholeWeights(held[s]));
    std::vector<std::vector<Value>> sums(stages);
    for (int s = 0; s < stages; ++s)
      sums[s].assign(graph.protocol(s).passes_sums() ? 1 : graph.members(s).size(), 0);
    for (int b = 0; b < microbatches; ++b) {
      std::vector<Value> out(stages), weights;
      for (int s = 0; s < stages; ++s)
        weights.push_back(whole[s][std::max(0, t - graph.schedule().StalenessOf(s, b))]);
      for (int s = 0; s < stages; ++s) {
        std::vector<Value> inputs;
        for (const int from : graph.inputs(s)) inputs.push_back(out[from]);
        out[s] = ForwardValue(Job::Compute(t, s, b, JobKind::kForward), Joined(inputs, t), weights[s]);
      }
      std::vector<std::vector<Value>> arrived(stages);  // by consumer, ascending
      for (int s = stages - 1; s >= 0; --s) {
        const Value gradient = InputGradientValue(Job::Compute(t, s, b, JobKind::kBackward), out[s],
                                                  Joined(arrived[s], 0), weights[s]);
        int i = 0;
        for (const int from : graph.inputs(s)) {
          arrived[from].insert(arrived[from].begin(), PartOfInput(gradient, i++));
        }
        const int parts = static_cast<int>(sums[s].size());
        for (int p = 0; p < parts; ++p)
          sums[s][p] = Mix(sums[s][p], SliceValue(GradientValue(gradient), p, parts));
      }
    }
    Value norm = 0;
    for (const std::vector<Value>& of_stage : sums) {
      for (const Value sum : of_stage) norm += NormValue(sum);
    }
    for (int s = 0; s < stages; ++s) {
      for (size_t p = 0; p < held[s].size(); ++p) {
        std::vector<Value> used =
            (graph.protocol(0).layout() == Layout::kSliced) ? std::vector<Value>{sums[s][p]} : sums[s];
        if (graph.terms().takes_norm) used.push_back(norm);
        held[s][p] = Updated(held[s][p], used);
      }
    }
  }
  versions.push_back(std::move(held));
  return versions;
}

}  // namespace weft
