// Plants faults of numerics: a rank's compute that does one job wrong, and a transport that changes one
// tensor on its way, both around sound ones. For tests of what finds such faults.
#ifndef WEFT_TESTS_CONFORMANCE_FAULTY_COMPUTE_H_
#define WEFT_TESTS_CONFORMANCE_FAULTY_COMPUTE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "schedules/job.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/transport/transport.h"

namespace weft::testing {

// Faults of a job.
enum class Wrong : uint8_t {
  kFlipsActivation,     // a bit of a forward's output
  kReadsStaleWeights,   // a forward computes with the weights of the version before
  kSwapsWeightSlices,   // a forward puts two slices of its weights in each other's place
  kScalesBackward,      // a backward takes twice the gradient of its output
  kFlipsInputGradient,  // a bit of what a backward gives to the stage before
  kFlipsGradient,       // a bit of a micro-batch's gradient that is handed out
  kDropsBackward,       // a backward takes no gradient: its micro-batch adds nothing
  kDropsMicrobatch,     // a sum gets zeros in place of a micro-batch
  kSwapsGradients,      // a sum gets a slice whose halves are exchanged
  kFlipsSum,            // a bit of the finished sum
  kFlipsRunningSum,     // a bit of the sum that goes on to the next micro-batch
  kScalesUpdate,        // an update takes twice the sum
  kFlipsWeights,        // a bit of the version that an update made or installed
  kFlipsInTransfer,     // a bit of an input of the job, on its way from another process
};

struct PlantedFault {
  Wrong wrong = Wrong::kFlipsActivation;
  Job job;
  TensorKind tensor = TensorKind::kActivation;  // of kFlipsInTransfer
  int microbatch = 0;                           // of kDropsMicrobatch and kSwapsGradients
};

// The fault, and how often it was carried out. It is shared by all ranks of a run.
struct Plant {
  PlantedFault fault;
  std::atomic<int> done{0};
};

std::unique_ptr<RankCompute> MakeFaulty(std::unique_ptr<RankCompute> sound, std::shared_ptr<Plant> plant);
std::unique_ptr<Transport> MakeFaulty(std::unique_ptr<Transport> sound, std::shared_ptr<Plant> plant);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_FAULTY_COMPUTE_H_
