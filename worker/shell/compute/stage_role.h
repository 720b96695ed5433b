// Says what a rank holds of a stage, and who makes the versions of its weights (RankWeights::AddStage).
#ifndef WEFT_WORKER_SHELL_COMPUTE_STAGE_ROLE_H_
#define WEFT_WORKER_SHELL_COMPUTE_STAGE_ROLE_H_

#include <cstdint>

namespace weft {

struct StageRole {
  enum class Holding : uint8_t {
    kNothing,    // each job brings the weights that it needs, or the stage's state comes and goes with it
    kUpdated,    // the rank holds weights, gradient sum and optimizer state; its updates are optimizer steps
    kInstalled,  // the rank holds the weights alone; its updates install versions that another rank made
  };
  Holding holding = Holding::kNothing;
  // The part that the rank holds: the whole, or slice `part` of `parts` (SliceOf). If it holds a slice, jobs
  // gather the weights and hand their gradients out, and an update takes the sum of the slice.
  int part = 0, parts = 1;
  // True if the rank sums only its own gradients: those of the micro-batches whose backwards run here, in the
  // order in which these end. Collectives make the sum over the ranks from it. It is false for a rank that
  // holds nothing.
  bool sums_own = false;
  // True for a rank that installs versions a step late: it begins with the version before the run's first.
  bool installs_late = false;

  static constexpr StageRole Nothing() { return {}; }
  static constexpr StageRole Whole() { return {Holding::kUpdated}; }
  static constexpr StageRole Slice(int part, int parts) { return {Holding::kUpdated, part, parts}; }
  static constexpr StageRole Installed(bool late = false) {
    return {Holding::kInstalled, 0, 1, /*sums_own=*/false, late};
  }

  constexpr bool holds() const { return holding != Holding::kNothing; }
  friend bool operator==(const StageRole&, const StageRole&) = default;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_STAGE_ROLE_H_
