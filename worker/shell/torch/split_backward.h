// Runs a backward in two halves without doing the chain of gradients twice.
//
// Gradients of parameters hang off the paths from a stage's output to its inputs: at each node of the path
// that has parameters (a linear layer's product, a norm) they need only the gradient that arrives there. The
// first half walks the path to the input, keeps those gradients, and cuts the path between these nodes, so
// that the saved tensors of the others go. The second computes each node's parameters, and nothing else. So
// both halves together do the work of the whole, with the same operations on the same values. Private to the
// adapter of LibTorch. One thread at a time.
#ifndef WEFT_WORKER_SHELL_TORCH_SPLIT_BACKWARD_H_
#define WEFT_WORKER_SHELL_TORCH_SPLIT_BACKWARD_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace weft {

// A node of the path with parameters: its edges that lead on to an input, where gradients arrive at it, those
// that arrived, and its parameters by number.
struct PathNode {
  std::shared_ptr<torch::autograd::Node> node;
  std::vector<size_t> onward;
  std::vector<torch::autograd::Edge> arrivals;
  std::vector<at::Tensor> gradients;
  std::vector<size_t> parameters;
};

// Finds the nodes between `output` and `inputs` from which some of `parameters`, the graph's ends, hang.
// Returns none where some parameter hangs from none of them or from several, so that the halves cannot be cut
// this way.
std::vector<PathNode> FindPathNodes(const torch::autograd::Edge& output,
                                    const std::vector<torch::autograd::Edge>& inputs,
                                    const std::vector<torch::autograd::Edge>& parameters);

// Runs the first half: returns the gradients of the inputs. Fills `nodes[..].gradients`; of the graph the
// nodes stay.
std::vector<at::Tensor> RunInputHalf(const torch::autograd::Edge& output, const at::Tensor& output_gradient,
                                     const std::vector<torch::autograd::Edge>& inputs,
                                     std::vector<PathNode>* nodes);
// Runs the second half: returns the gradients of `parameters`. Gives the nodes up.
std::vector<at::Tensor> RunWeightHalf(const std::vector<torch::autograd::Edge>& parameters,
                                      std::vector<PathNode>* nodes);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_SPLIT_BACKWARD_H_
