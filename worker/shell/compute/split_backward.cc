#include "worker/shell/compute/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace weft {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

std::vector<at::Tensor> Execute(const edge_list& roots, const std::vector<at::Tensor>& gradients,
                                bool keep_graph, const edge_list& wanted) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph,
                                                               /*create_graph=*/false,
                                                               /*accumulate_grad=*/false, wanted);
}

class PathFinder {
 public:
  PathFinder(const Node* input, const std::vector<at::Tensor>& parameters) {
    reaches_[input] = true;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameter_[torch::autograd::impl::gradient_edge(parameters[i]).function.get()] = i;
    }
  }

  // False where the parameters cannot be told apart by nodes.
  bool Find(const std::shared_ptr<Node>& output, std::vector<PathNode>* nodes) {
    if (!Reaches(output)) return false;
    size_t found = 0;
    for (const std::shared_ptr<Node>& node : path_) {
      PathNode at;
      for (const Edge& next : node->next_edges()) {
        if (next.is_valid() && !reaches_[next.function.get()]) Collect(next.function.get(), &at.parameters);
      }
      if (at.parameters.empty()) continue;
      found += at.parameters.size();
      for (uint32_t i = 0; i < node->num_inputs(); ++i) at.arrivals.emplace_back(node, i);
      nodes->push_back(std::move(at));
    }
    // Each once: collected as often as there are parameters, and none missing.
    return found == parameter_.size() && collected_.size() == parameter_.size();
  }

 private:
  // A chain of layers is as deep as it is long, so the walk keeps its own stack.
  bool Reaches(const std::shared_ptr<Node>& output) {
    struct Visit {
      std::shared_ptr<Node> node;
      size_t next = 0;
      bool reaches = false;
    };
    std::vector<Visit> stack{{output}};
    bool last = false;
    while (!stack.empty()) {
      Visit& top = stack.back();
      const edge_list& edges = top.node->next_edges();
      if (top.next == edges.size()) {
        last = reaches_[top.node.get()] = top.reaches;
        if (last) path_.push_back(top.node);
        stack.pop_back();
        if (!stack.empty()) stack.back().reaches |= last;
        continue;
      }
      const Edge& edge = edges[top.next++];
      if (!edge.is_valid()) continue;
      const auto known = reaches_.find(edge.function.get());
      if (known == reaches_.end()) {
        stack.push_back({edge.function});
      } else {
        top.reaches |= known->second;
      }
    }
    return last;
  }

  void Collect(const Node* node, std::vector<size_t>* parameters) {
    const auto found = parameter_.find(node);
    if (found != parameter_.end()) {
      parameters->push_back(found->second);
      collected_[node] = true;
      return;
    }
    for (const Edge& next : node->next_edges()) {
      if (next.is_valid()) Collect(next.function.get(), parameters);
    }
  }

  absl::flat_hash_map<const Node*, bool> reaches_;  // the input
  absl::flat_hash_map<const Node*, size_t> parameter_;
  absl::flat_hash_map<const Node*, bool> collected_;
  std::vector<std::shared_ptr<Node>> path_;
};

}  // namespace

std::vector<PathNode> FindPathNodes(const Edge& output, const Edge& input,
                                    const std::vector<at::Tensor>& parameters) {
  std::vector<PathNode> nodes;
  if (!PathFinder(input.function.get(), parameters).Find(output.function, &nodes)) nodes.clear();
  return nodes;
}

at::Tensor RunInputHalf(const Edge& output, const at::Tensor& output_gradient, const Edge& input,
                        std::vector<PathNode>* nodes) {
  edge_list wanted{input};
  for (const PathNode& node : *nodes) wanted.insert(wanted.end(), node.arrivals.begin(), node.arrivals.end());
  std::vector<at::Tensor> made = Execute({output}, {output_gradient}, /*keep_graph=*/true, wanted);
  auto next = made.begin();
  at::Tensor input_gradient = *next++;
  for (PathNode& node : *nodes) {
    edge_list arrivals;
    for (const Edge& arrival : node.arrivals) {
      at::Tensor gradient = std::move(*next++);
      if (!gradient.defined()) continue;  // of an output that nobody uses, as a norm's statistics
      arrivals.push_back(arrival);
      node.gradients.push_back(std::move(gradient));
    }
    node.arrivals = std::move(arrivals);
  }
  return input_gradient;
}

std::vector<at::Tensor> RunWeightHalf(const std::vector<at::Tensor>& parameters,
                                      std::vector<PathNode>* nodes) {
  std::vector<at::Tensor> gradients(parameters.size());
  for (PathNode& node : *nodes) {
    edge_list wanted;
    for (const size_t i : node.parameters) {
      wanted.push_back(torch::autograd::impl::gradient_edge(parameters[i]));
    }
    // Wanted are this node's parameters alone, so the path beyond it is not walked.
    std::vector<at::Tensor> made = Execute(node.arrivals, node.gradients, /*keep_graph=*/false, wanted);
    for (size_t i = 0; i < made.size(); ++i) gradients[node.parameters[i]] = std::move(made[i]);
    node.gradients.clear();
  }
  nodes->clear();
  return gradients;
}

}  // namespace weft
