// Defines the numbers of a simulated world in place of tensors, and the plain loop over them.
//
// A value is a hash of all that went into it, in order: two that are equal were computed from the same things
// in the same order. The world's jobs compute values; the plain loop says what they must come to. Pure.
#ifndef WEFT_TESTS_SIMULATION_WORLD_VALUES_H_
#define WEFT_TESTS_SIMULATION_WORLD_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

using Value = uint64_t;

// The values that the members of a stage hold, the whole or a slice each, by stage.
using Held = std::vector<std::vector<Value>>;

Value Mix(Value a, Value b);
Value InitialWeights(int stage);
Value ForwardValue(const Job& j, Value input, Value weights);
Value InputGradientValue(const Job& j, Value output, Value gradient, Value weights);
Value GradientValue(Value input_gradient);
Value SliceValue(Value gradient, int part, int parts);
// Joins several inputs, or the gradients of several consumers, in order; of one, returns itself.
Value Joined(const std::vector<Value>& values, Value none);
// Returns a backward's gradient for input `i`.
Value PartOfInput(Value input_gradient, int i);
// Returns a reduce's contribution to the norm; such values are added, in any order.
Value NormValue(Value sum);
Value Updated(Value weights, const std::vector<Value>& sums);
// Returns the weights of a stage's jobs, from the slices of its members in order, or from the one whole.
Value WholeWeights(const std::vector<Value>& slices);
size_t SlicesOf(const Graph& graph, int stage);
// Returns the held values after 0, 1, .. `steps` steps of the plain loop.
std::vector<Held> PlainLoop(const Graph& graph, int steps);

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_WORLD_VALUES_H_
