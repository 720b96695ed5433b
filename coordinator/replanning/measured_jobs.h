// Adds up the times that the ranks of a run took for their jobs, by rank, kind and stage, and tells from them
// what the jobs cost and how fast the ranks are.
//
// Ranks are compared by jobs that cost the same: those of one kind on one stage, or on stages of equal
// layers. If stages differ and each is on one rank, only the ranks' own earlier jobs compare them: a rank
// that has become slower shows, but one that was slow from the start counts as having costly stages. Sums of
// gradients and updates are not compared, because their parts differ between placements.
//
// Pure; a value.
#ifndef WEFT_COORDINATOR_REPLANNING_MEASURED_JOBS_H_
#define WEFT_COORDINATOR_REPLANNING_MEASURED_JOBS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "run/run_spec.h"
#include "schedules/job.h"

namespace weft {

class MeasuredJobs {
 public:
  struct Sum {
    double seconds = 0;
    int64_t count = 0;
    double mean() const { return count > 0 ? seconds / static_cast<double>(count) : 0; }
  };

  explicit MeasuredJobs(int ranks = 0, int stages = 0);

  // Adds a job; leaves out one of an unknown rank or stage.
  void Add(Rank rank, const Job& job, double seconds);
  // Adds the jobs of as many ranks and stages.
  void Add(const MeasuredJobs& others);

  int ranks() const { return ranks_; }
  int stages() const { return stages_; }
  const Sum& Of(Rank rank, JobKind kind, int stage) const { return sums_[IndexOf(rank, kind, stage)]; }

 private:
  size_t IndexOf(Rank rank, JobKind kind, int stage) const {
    return (static_cast<size_t>(rank) * kJobKinds + static_cast<size_t>(kind)) * stages_ + stage;
  }

  int ranks_, stages_;
  std::vector<Sum> sums_;
};

// Costs of a run's jobs, and speeds of its ranks.
struct RankCosts {
  std::array<std::vector<double>, kJobKinds> duration;  // by kind and stage, in seconds, on a rank of speed 1
  std::vector<double> speeds;                           // by rank; the fastest has 1
};

// Tells both from the jobs of a run. `before`: earlier jobs of the same run, of ranks on the same machines;
// null where there are none.
RankCosts CostsOfJobs(const RunSpec& run, const MeasuredJobs& jobs, const MeasuredJobs* before = nullptr);

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_MEASURED_JOBS_H_
