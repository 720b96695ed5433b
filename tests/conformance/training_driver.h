// Drives RankCompute by hand through whole training steps, in several arrangements, for tests that compare
// the resulting bits.
#ifndef WEFT_TESTS_CONFORMANCE_TRAINING_DRIVER_H_
#define WEFT_TESTS_CONFORMANCE_TRAINING_DRIVER_H_

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "run/run_spec.h"
#include "tests/conformance/small_runs.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"

namespace weft::testing {

// Ends the test program at a failure: a driver that goes on after one would fail far from the cause.
inline void Require(const absl::Status& status) {
  if (status.ok()) return;
  ADD_FAILURE() << status;
  std::abort();
}
template <typename T>
T Require(absl::StatusOr<T> result) {
  Require(result.status());
  return *std::move(result);
}

// Returns an independent copy in ordinary memory, aligned to 64 bytes.
Tensor CopyOf(const Tensor& tensor);

// Overwrites memory with NaNs, so that a later reader is found out.
void Poison(const Tensor& tensor);

// Returns the tensor as the only one of a list; none if it is empty.
std::vector<Tensor> One(Tensor tensor);

struct Outcome {
  // Losses of each step; -1 for none that is a number.
  std::vector<double> losses;
  std::vector<double> norms;                                     // of its gradients, where the run takes it
  int skipped = 0;                                               // steps, as the reference tells
  std::map<std::string, std::vector<uint8_t>> initial, trained;  // checkpoint tensors by name
};

// Runs the plain loop, on the CPU or a backend (devices.h).
Outcome Reference(const RunSpec& run, DeviceBackend* backend = nullptr);

struct Arrangement {
  enum class Kind {
    kPipeline,  // one rank a stage, gradients added where they are made
    kOneRank,   // all stages on one rank
    kReplicas,  // B ranks that hold everything; gradients travel in slices
    kRelayed,   // likewise, but a running sum goes from rank to rank; the last updates, the others copy it
    kFetched,   // one rank holds the weights, another computes with copies of them
    kSlices,    // B ranks that hold a slice of each stage; weights are gathered, gradients travel in slices
    kRemoteBackward,  // one rank holds the weights and runs the forwards, another the backwards
  } kind = Kind::kPipeline;
  std::vector<int> backward_order;  // order of micro-batches; empty for 0, 1, 2, ..
  bool split_backward = false;
  // Runs each micro-batch's forwards on another thread than, and beside, the backwards of the one before.
  bool overlapped = false;
};
Outcome Train(Device& device, const RunSpec& run, const Arrangement& arrangement);
// Trains the first `stop` steps in one arrangement, the others in another that goes on from its checkpoint.
Outcome TrainInTwo(Device& device, const RunSpec& run, int stop, const Arrangement& first,
                   const Arrangement& second);

// Reads the tensors of all files of a checkpoint folder, weights and training state, found through its index.
std::map<std::string, std::vector<uint8_t>> ReadCheckpoint(const std::string& folder);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_TRAINING_DRIVER_H_
