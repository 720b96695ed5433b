// Reads and applies a profile: the measured or counted costs of a model's parts, as the simulator takes them.
//
// A profile is a JSON file: `layers`, from first to last, or `stages`, each a list of objects with the times
// `forward` (must be given), `backward`, `backward_input`, `backward_weight`, `reduce`, `accumulate`, `cold`
// and `update`, in any one unit, and the bytes `activation_bytes` and `output_bytes` of a micro-batch,
// `weight_bytes`, and `state_bytes` (gradients, the optimizer's moments, and a copy of the weights that is
// narrowed); beside it, optionally, the links' `bandwidth` in bytes per unit of time and `latency`, the
// `network` (run/network_spec.h), `host_bandwidth`, of copies that `offload` makes, `dispatch`, the idle time
// of a rank before a job that is ready, `overlapped`, the time of a forward and a backward as a pair,
// `samples`, of the micro-batch whose times and bytes these are, and `activations`, the policy under which
// they were measured. Layers may have the bytes that their jobs take while they run (run/measured_buffers.h):
// all of them, or none. A backward that is not given is its halves together, or twice the forward; halves
// that are not given are each half of it. Times of layers add up to those of a stage, and the output of a
// stage is that of its last layer. A layer at the front may have `readers`, the numbers of one or two layers
// behind it: it is a tied parameter, which these read. Beside a run file, the run says which layers are tied.
//
// Failure: InvalidArgument with file, place and what is allowed.
#ifndef WEFT_CLIENT_FILES_PROFILE_H_
#define WEFT_CLIENT_FILES_PROFILE_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "run/measured_buffers.h"
#include "run/network_spec.h"
#include "run/run_spec.h"
#include "schedules/run_terms.h"
#include "schedules/simulator/simulate.h"

namespace weft {

struct ProfilePart {
  double forward = 0, backward = 0, backward_input = 0, backward_weight = 0, reduce = 0, update = 0;
  double accumulate = 0;  // adding the gradient of a micro-batch to a sum
  double cold = 0;        // extra time of the first micro-batch of a step on a rank
  double activation_bytes = 0, output_bytes = 0, weight_bytes = 0, state_bytes = 0;
  double copied_bytes = 0;   // of a copy of its output, on another rank; in no file, as the run says it
  std::vector<int> readers;  // layers that read the part, if it is a tied parameter; else none
};

// Figures that add up over the layers of a stage; the others are those of its last layer.
inline constexpr std::array<double ProfilePart::*, 11> kSummedOfParts = {
    &ProfilePart::forward,         &ProfilePart::backward,   &ProfilePart::backward_input,
    &ProfilePart::backward_weight, &ProfilePart::reduce,     &ProfilePart::update,
    &ProfilePart::accumulate,      &ProfilePart::cold,       &ProfilePart::activation_bytes,
    &ProfilePart::weight_bytes,    &ProfilePart::state_bytes};

struct Profile {
  std::vector<ProfilePart> parts;
  bool of_stages = false;  // true for parts that are stages, false for layers
  std::string unit;        // unit of all times, as the file calls it; "s" is seconds
  double overlapped = 0, bandwidth = 0, latency = 0;
  double dispatch = 0;      // idle time of a rank before a job that is ready
  int samples = 0;          // of a micro-batch; 0 where it is not known
  std::string activations;  // policy of all layers; empty where it is not known
  std::optional<NetworkSpec> network;
  double host_bandwidth = 0;  // bytes per unit of time between a rank's memory and the host's; 0 if not known
  std::optional<MeasuredBuffers> buffers;  // of the layers, for their own number of samples
  std::string lacks_for_buffers;           // says why a profile that was read has none

  // Returns the number of layers at the front that are tied parameters, as the file says.
  int tied_layers() const;
  // Returns true if stages under other policies for activations take these times and what those cost.
  bool is_of_retaining() const { return activations == "retain"; }
};

inline constexpr size_t kMaxProfileBytes = 64 << 20;  // of a profile's file

absl::StatusOr<Profile> ReadProfile(const std::string& path);

// Reads a profile that has buffers. InvalidArgument if it has none.
absl::StatusOr<Profile> ReadProfileWithBuffers(const std::string& path);

// Compares what a measurement cannot change: the number of layers, and the bytes of the weights of those that
// have some in the profile. InvalidArgument, which begins with the path, for a profile of layers of another
// model.
absl::Status CheckSameModel(const std::string& path, const Profile& profile, const RunSpec& run);

// Returns the bytes of the weights of a run's model.
double WeightBytesOf(const RunSpec& run);

// Returns the hash of a profile's bytes, by which a plan says where it came from: 16 hexadecimal digits.
std::string ProfileHash(absl::string_view text);

// Makes a profile of the layers of a run's model by its counted FLOPs at `flops` a unit of time: a backward
// is twice a forward. Activations are those that a retaining forward keeps (LayerCount of model_layers.h).
Profile CountedProfile(const RunSpec& run, double flops);

// Returns the profile of micro-batches of so many samples: times and bytes of a micro-batch are in proportion
// to them, but for the first `tied` parts: a tied parameter, whose copy and gradient have no samples.
// Requires a profile that knows its own samples.
Profile WithSamples(const Profile& profile, int samples, int tied);

// Returns the profile of a run's stages, or of its layers, for its micro-batches. A profile of stages may
// leave out those that are made of tied parameters; their jobs then compute nothing. InvalidArgument if it
// has another number of stages.
absl::StatusOr<Profile> ProfileFor(const Profile& profile, const RunSpec& run);

// Applies a profile to a schedule that was made without a run, for stages of these layers, or of the best cut
// where the list is empty: `options` as ApplyProfile sets them. Where the schedule has no inputs of stages
// yet, it gets a leading stage (schedules/families/leading_stages.h) for each tied parameter that stages
// behind the first read, and who reads what.
absl::Status ApplyToSchedule(const Profile& profile, const std::vector<int>& layers_of_stage,
                             RunSchedule* schedule, SimulationOptions* options);

// Applies the parts as stages: `layers_of_stage` says which layers; where it is empty, layers are cut into
// `stages` parts so that the largest takes least time. Sets times, bytes and links of `options`.
absl::Status ApplyProfile(const Profile& profile, int stages, const std::vector<int>& layers_of_stage,
                          SimulationOptions* options);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_PROFILE_H_
