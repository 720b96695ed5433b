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

}  // namespace weft
