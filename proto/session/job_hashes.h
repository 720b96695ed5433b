// Defines the hashes of a job's values, which a run records so that `weft diff` finds the first job whose
// results differ from another run's.
//
// A value is a result of the training, whichever rank computes it: an activation, a gradient, a version of
// weights. Its hash is the sum of the hashes of its blocks (worker/shell/compute/value_hash.h), so slices of
// a value have hashes of their own that add up to that of the whole. The same values of two runs can be
// compared whatever their schedules, ranks and processes are. Pure.
#ifndef WEFT_PROTO_SESSION_JOB_HASHES_H_
#define WEFT_PROTO_SESSION_JOB_HASHES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "schedules/job.h"

namespace weft {

enum class HashedValue : uint8_t {
  kActivation,      // output of a stage's forward
  kInputGradient,   // gradient of a stage's input; part i of n is that of its i-th input
  kGradient,        // gradient of the parameters from one micro-batch
  kRunningSum,      // sum of the gradients of this micro-batch and those before it, where holders relay
  kGradientSum,     // gradient summed over the step's micro-batches
  kWeights,         // the version that an update made
  kInitialWeights,  // the version that a forward read, where the run began with it
};
inline constexpr int kHashedValues = 7;

// Returns "activation", "input_gradient", "gradient", "running_sum", "gradient_sum", "weights" or
// "initial_weights".
absl::string_view HashedValueName(HashedValue value);
std::optional<HashedValue> HashedValueNamed(absl::string_view name);

struct ValueHash {
  HashedValue value = HashedValue::kActivation;
  // True for an input that came from another process, as it arrived; then `source` says from where: the stage
  // that made the activation or input gradient, the micro-batch of the gradient, the version of the weights.
  bool received = false;
  int32_t source = 0;
  int32_t part = 0, parts = 1;
  uint64_t hash = 0;

  friend bool operator==(const ValueHash&, const ValueHash&) = default;
};

// A job that is done, with its hashes and the numbers that it reported.
struct JobHashes {
  Job job;
  Rank rank = 0;        // -1 for the reference
  int32_t process = 0;  // likewise
  std::optional<double> loss, gradient_norm;
  std::vector<ValueHash> hashes;

  friend bool operator==(const JobHashes&, const JobHashes&) = default;
};

// Returns the job as a line of hashes.jsonl, without its end: a JSON object (docs/guide/outputs.md).
std::string HashLine(const JobHashes& job);

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_JOB_HASHES_H_
