// Estimates the memory that it takes to check, plan or simulate a schedule, before anything is built.
//
// A few hundred bytes of a run file can ask for a job graph of any size: 65,536 micro-batches of ddp have
// 65,536 ranks that each sum a slice of 65,536 gradients. So every command and the coordinator ask here first
// and refuse with the numbers. The bytes are an upper estimate of what the checks, the claim order and the
// simulator hold at their peak, fitted to measurements. Pure.
#ifndef WEFT_SCHEDULES_GRAPH_SIZE_H_
#define WEFT_SCHEDULES_GRAPH_SIZE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "schedules/schedule.h"

namespace weft {

// The most bytes that planning a schedule may take: enough for the whole catalogue at 1000 stages of 1000
// micro-batches and more.
inline constexpr int64_t kMaxPlanningBytes = int64_t{4} << 30;

struct PlanningSize {
  int64_t jobs = 0;  // jobs of a period of steps
  int64_t ranks = 0;
  int64_t terms = 0;  // terms of the sums over holders: each holder of a stage and each micro-batch

  int64_t bytes() const;
};

// Counts the size of a schedule, which need not be sound.
PlanningSize SizeOf(const Schedule& schedule);

// Returns InvalidArgument, with the numbers and the bound, for a schedule that would take more.
absl::Status CheckSize(const Schedule& schedule);
// Checks the number of jobs alone, before a schedule is made: families list them.
absl::Status CheckSize(int stages, int microbatches);

}  // namespace weft

#endif  // WEFT_SCHEDULES_GRAPH_SIZE_H_
