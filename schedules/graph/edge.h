// Defines an edge of the job graph: one job waits for another, and a tensor may travel along it.
#ifndef WEFT_SCHEDULES_GRAPH_EDGE_H_
#define WEFT_SCHEDULES_GRAPH_EDGE_H_

#include <cstdint>
#include <vector>

#include "schedules/job.h"

namespace weft {

struct Edge {
  Job from;
  Job to;
  TensorKind tensor = TensorKind::kOrder;
  // Slice number of gradients, and of weights that are held in slices; of an activation, which of its stage's
  // consumers gets it, and of an input gradient, which of its stage's inputs it is for.
  int32_t part = 0;
  int32_t version = 0;  // of the weights
  // The edge is into a joint operation (sync/joint_order.h): `to` may start it before `from` has ended, and
  // it ends after `from`. Nothing is sent for it: the operation itself waits.
  bool joined = false;

  friend bool operator==(const Edge&, const Edge&) = default;
};

using Edges = std::vector<Edge>;

// Bytes of a sum of squares (TensorKind::kNorm) as it travels.
inline constexpr int64_t kNormBytes = 160;

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_EDGE_H_
