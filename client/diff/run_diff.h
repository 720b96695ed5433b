// Finds the first job whose results differ between two runs of the same training.
//
// It goes by the causal order of the job graph, not time: all that the job's results follow from is equal in
// both runs, and a result is not. The order is that of the training itself (forward, backward, sum, update),
// so that runs under different schedules and placements, and the reference, can be compared. A value that one
// of the runs has not recorded (proto/session/job_hashes.h) is passed over: a difference behind it then names
// the first job after it.
//
// Pure; one thread.
#ifndef WEFT_CLIENT_DIFF_RUN_DIFF_H_
#define WEFT_CLIENT_DIFF_RUN_DIFF_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "client/diff/recorded_hashes.h"
#include "proto/session/job_hashes.h"

namespace weft {

// The training that both runs are of.
struct DiffTraining {
  int stages = 0, microbatches = 0;
  std::vector<std::vector<int>> inputs;     // stages that each stage reads; by stage
  std::vector<std::vector<int>> staleness;  // by stage and micro-batch
};

// A kind of result: a hashed value, or a number that a job reported.
enum class DiffedResult : uint8_t {
  kInitialWeights,
  kActivation,
  kLoss,
  kInputGradient,
  kGradient,
  kRunningSum,
  kGradientSum,
  kGradientNorm,
  kWeights,
};
// Returns "initial weights", "activation", "loss", "input gradient", "gradient", "running sum", "gradient
// sum", "gradient norm", "weights".
absl::string_view DiffedResultName(DiffedResult result);

struct RunDiff {
  // A result that differs.
  struct Result {
    DiffedResult result = DiffedResult::kActivation;
    ValueCopy a, b;
  };
  // An input that did not arrive as it was sent, in one of the runs.
  struct Transfer {
    bool in_b = false;
    ValueHash received;
    ValueCopy sent;
    const JobHashes* receiver = nullptr;
  };
  // A job whose results differ while all that they follow from is equal.
  struct Root {
    std::vector<Result> results;
    std::vector<Transfer> transfers;
    // True if all inputs of the job that came from other processes arrived as they were sent, in both runs;
    // false also if that was not recorded.
    bool arrived_whole = false;

    const JobHashes& a() const { return *results.front().a.job; }
    const JobHashes& b() const { return *results.front().b.job; }
  };

  std::vector<Root> roots;        // in the causal order; the first is the one to look at
  int64_t values = 0;             // values that were compared
  int64_t following = 0;          // jobs that differ, and follow from roots
  int first_step = 0, steps = 0;  // steps that both have recorded

  bool equal() const { return roots.empty(); }
};

// Compares the recordings. The result refers to `a` and `b`.
RunDiff DiffRuns(const DiffTraining& training, const RecordedHashes& a, const RecordedHashes& b);

}  // namespace weft

#endif  // WEFT_CLIENT_DIFF_RUN_DIFF_H_
