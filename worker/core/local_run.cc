#include "worker/core/local_run.h"

#include <utility>

namespace weft {

LocalRun::LocalRun(const Assign& assign, Shape shape)
    : assignment_(assign),
      run_(std::move(shape.run)),
      graph_(std::move(shape.schedule), shape.steps, shape.first_step),
      tables_(TablesOf(graph_, std::move(shape.tables))),
      steps_(shape.steps),
      first_step_(shape.first_step),
      place_of_rank_(assign.process_of_rank.size(), -1) {
  for (const RankLease& lease : assignment_.leases)
    place_of_rank_[lease.rank] = static_cast<int>(&lease - assignment_.leases.data());
}

TensorKey LocalRun::KeyOf(const Edge& e) const {
  TensorKey key;
  key.run = assignment_.run;
  key.epoch = assignment_.epoch;
  key.step = e.from.step;
  key.stage = e.from.stage;
  key.microbatch = e.from.microbatch;
  key.version = e.version;
  key.part = e.part;
  key.producer = graph_.RankOf(e.from);
  key.consumer = graph_.RankOf(e.to);
  key.kind = e.tensor;
  key.use = static_cast<uint8_t>(e.to.kind);
  if (e.tensor == TensorKind::kWeights) {
    // Each reader fetches its own copy, and early steps may read the same version.
    key.step = e.to.step;
    key.microbatch = e.to.microbatch;
  } else if (e.tensor == TensorKind::kState) {
    key.part = static_cast<int32_t>(e.from.kind);
  } else if (e.tensor == TensorKind::kOrder) {
    key.version = static_cast<int32_t>(e.from.kind);
    key.part = e.to.stage * graph_.schedule().microbatches + e.to.microbatch;
  }
  return key;
}

}  // namespace weft
