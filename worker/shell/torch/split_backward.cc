#include "worker/shell/torch/split_backward.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace weft {
namespace {

using AutogradEdge = torch::autograd::Edge;
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
  PathFinder(const edge_list& inputs, const edge_list& parameters) {
    for (const AutogradEdge& input : inputs) reaches_[input.function.get()] = true;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameter_[parameters[i].function.get()] = i;
    }
  }

  // Finds the nodes. Returns false where the parameters cannot be told apart by nodes.
  bool Find(const std::shared_ptr<Node>& output, std::vector<PathNode>* nodes) {
    if (!Reaches(output)) return false;
    size_t found = 0;
    for (const std::shared_ptr<Node>& node : path_) {
      PathNode at{node, {}, {}, {}, {}};
      for (size_t i = 0; i < node->next_edges().size(); ++i) {
        const AutogradEdge& next = node->next_edges()[i];
        if (!next.is_valid()) continue;
        if (reaches_[next.function.get()]) {
          at.onward.push_back(i);
        } else {
          Collect(next.function.get(), &at.parameters);
        }
      }
      if (at.parameters.empty()) continue;
      found += at.parameters.size();
      for (uint32_t i = 0; i < node->num_inputs(); ++i) at.arrivals.emplace_back(node, i);
      nodes->push_back(std::move(at));
    }
    // Each parameter must be collected once, and none may be missing.
    return found == parameter_.size() && collected_.size() == parameter_.size();
  }

 private:
  // Returns true if the node reaches an input. A chain of layers is as deep as it is long, so the walk keeps
  // its own stack.
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
      const AutogradEdge& edge = edges[top.next++];
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
    for (const AutogradEdge& next : node->next_edges()) {
      if (next.is_valid()) Collect(next.function.get(), parameters);
    }
  }

  absl::flat_hash_map<const Node*, bool> reaches_;  // true if the node reaches an input
  absl::flat_hash_map<const Node*, size_t> parameter_;
  absl::flat_hash_map<const Node*, bool> collected_;
  std::vector<std::shared_ptr<Node>> path_;
};

}  // namespace

std::vector<PathNode> FindPathNodes(const AutogradEdge& output, const edge_list& inputs,
                                    const edge_list& parameters) {
  std::vector<PathNode> nodes;
  if (!PathFinder(inputs, parameters).Find(output.function, &nodes)) nodes.clear();
  return nodes;
}

std::vector<at::Tensor> RunInputHalf(const AutogradEdge& output, const at::Tensor& output_gradient,
                                     const edge_list& inputs, std::vector<PathNode>* nodes) {
  edge_list wanted = inputs;
  for (const PathNode& node : *nodes) wanted.insert(wanted.end(), node.arrivals.begin(), node.arrivals.end());
  std::vector<at::Tensor> made = Execute({output}, {output_gradient}, /*keep_graph=*/true, wanted);
  auto next = made.begin() + static_cast<std::ptrdiff_t>(inputs.size());
  std::vector<at::Tensor> input_gradients(std::make_move_iterator(made.begin()),
                                          std::make_move_iterator(next));
  for (PathNode& node : *nodes) {
    edge_list arrivals;
    for (const AutogradEdge& arrival : node.arrivals) {
      at::Tensor gradient = std::move(*next++);
      if (!gradient.defined()) continue;  // an output that nobody uses has none, as a norm's statistics
      arrivals.push_back(arrival);
      node.gradients.push_back(std::move(gradient));
    }
    node.arrivals = std::move(arrivals);
    for (const size_t i : node.onward) node.node->next_edges()[i] = AutogradEdge();
  }
  return input_gradients;
}

std::vector<at::Tensor> RunWeightHalf(const edge_list& parameters, std::vector<PathNode>* nodes) {
  edge_list roots;
  std::vector<at::Tensor> arrived;
  for (PathNode& node : *nodes) {
    roots.insert(roots.end(), node.arrivals.begin(), node.arrivals.end());
    std::move(node.gradients.begin(), node.gradients.end(), std::back_inserter(arrived));
  }
  nodes->clear();
  return Execute(roots, arrived, /*keep_graph=*/false, parameters);
}

}  // namespace weft
