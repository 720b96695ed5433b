#include "worker/core/tensor_key.h"

#include "absl/strings/str_cat.h"
#include "proto/session/messages.h"
#include "schedules/graph/graph.h"

namespace weft {

TensorKey TensorKey::OfEdge(uint64_t run, uint64_t epoch, const Graph& graph, const Edge& edge) {
  TensorKey key;
  key.run = run;
  key.epoch = epoch;
  key.step = edge.from.step;
  key.stage = edge.from.stage;
  key.microbatch = edge.from.microbatch;
  key.version = edge.version;
  key.part = edge.part;
  key.producer = graph.RankOf(edge.from);
  key.consumer = graph.RankOf(edge.to);
  key.kind = edge.tensor;
  // A forward and a backward may each fetch the same weights.
  key.use = static_cast<uint8_t>(edge.to.kind);
  if (edge.tensor == TensorKind::kWeights) {
    // Each reader fetches its own copy, and early steps may read the same version.
    key.step = edge.to.step;
    key.microbatch = edge.to.microbatch;
  } else if (edge.tensor == TensorKind::kState) {
    key.part = static_cast<int32_t>(edge.from.kind);
  } else if (edge.tensor == TensorKind::kOrder) {
    key.version = static_cast<int32_t>(edge.from.kind);
    key.part = edge.to.stage * graph.schedule().microbatches + edge.to.microbatch;
  }
  return key;
}

TensorKey TensorKey::OfCopy(uint64_t run, uint64_t epoch, int32_t step, const StatePart& part, Rank producer,
                            Rank consumer, CopyUse use) {
  TensorKey key;
  key.run = run;
  key.epoch = epoch;
  key.step = key.version = step;
  key.stage = part.stage;
  key.part = part.part;
  key.producer = producer;
  key.consumer = consumer;
  key.kind = TensorKind::kCopy;
  key.use = static_cast<uint8_t>(use);
  return key;
}

StatePart TensorKey::copied_part() const { return {stage, part}; }

std::string Describe(const TensorKey& key) {
  std::string s = absl::StrCat(TensorKindName(key.kind), " of step ", key.step, ", stage ", key.stage);
  if (key.microbatch >= 0) absl::StrAppend(&s, ", micro-batch ", key.microbatch);
  if (key.kind == TensorKind::kWeights) absl::StrAppend(&s, ", version ", key.version);
  if (key.kind == TensorKind::kGradient || key.kind == TensorKind::kGradientSum) {
    absl::StrAppend(&s, ", part ", key.part);
  }
  absl::StrAppend(&s, ", from rank ", key.producer, " for rank ", key.consumer);
  return s;
}

}  // namespace weft
