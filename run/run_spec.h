// Holds a run file as a value: the model, the data, the length of the training, the cut and the schedule.
//
// The client reads YAML, turns it into JSON and parses it here; the wire carries the same JSON text and every
// receiver parses it with the same function. So there is one grammar, one validation and one set of messages
// for a file, a request and a test. The file does not say which part of its steps a run makes: `until` and
// `resume` come from the command line, and travel in the same JSON.
//
// Invariants of a parsed RunSpec: every field is in range, `microbatches` divides `batch`, stages fit the
// model's chain, the schedule's name and parameters are known (schedules/families/families.h and
// schedules/check/check.h decide whether they fit together). Pure. Failure: InvalidArgument whose message
// says what is wrong, where (as `train.batch`), and what is allowed; an unknown key names the nearest valid
// one. The payload kPathPayload holds the path of the offending value for readers that know its line.
#ifndef WEFT_RUN_RUN_SPEC_H_
#define WEFT_RUN_RUN_SPEC_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "run/measured_buffers.h"
#include "run/model_spec.h"
#include "run/network_spec.h"
#include "run/precision.h"

namespace weft {

inline constexpr absl::string_view kPathPayload = "weft/path";
inline constexpr int kMaxBatch = 1 << 20;  // most samples of a step

struct TextData {
  // The form of the file: its bytes are tokens; or numbers of 16 or 32 bits, the low byte first; or the same
  // behind a header, as llm.c writes them; or as Megatron-LM does, with an index beside it (token_file.h).
  enum class Tokens : uint8_t { kBytes, kUInt16, kUInt32, kLlmC, kMegatron };
  std::string path;
  Tokens tokens = Tokens::kBytes;
  // Fields of an exported model: those that get the tokens of a sample, and those that get the token behind
  // each of them. Empty for a gpt.
  std::vector<std::string> inputs = {}, targets = {};
};
struct IdxData {
  std::string images, labels;
  bool resize = false;  // to the model's size
};
struct Cifar10Data {
  std::string path;  // a file of records, or the folder of the published ones
  bool resize = false;
};
// Fields of an exported model's samples, each of NumPy files (.npy) whose first dimension counts the samples.
struct ArraysData {
  std::map<std::string, std::vector<std::string>>
      paths;  // by the field's name; samples go on in the next file
};
// The changes to an image each time that it is trained on (augment.h has the exact rule).
struct Augmentation {
  int crop = 0;       // width of the zeros around the image, of which a part of the image's size is taken
  bool flip = false;  // exchanges left and right in half of the cases
  bool any() const { return crop > 0 || flip; }
};
struct DataSpec {
  std::variant<TextData, IdxData, Cifar10Data, ArraysData> source;
  std::string order = "sequential";  // or "shuffled" (sample_order.h)
  Augmentation augment = {};
};

// `no_decay`: patterns of the names of parameters whose weights do not decay (weight_decay.h).
struct SgdSpec {
  double lr = 0.01, momentum = 0, weight_decay = 0;
  std::vector<std::string> no_decay = {};
};
struct AdamWSpec {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  std::vector<std::string> no_decay = {};
};
using OptimizerSpec = std::variant<SgdSpec, AdamWSpec>;

// The course of the learning rate over the steps: a warm-up to the optimizer's lr, then a decay;
// learning_rate.h has the formulas.
struct LearningRateSchedule {
  enum class Decay : uint8_t { kConstant, kLinear, kCosine, kStep };
  Decay decay = Decay::kConstant;
  int warmup = 0;     // steps
  double min_lr = 0;  // lowest rate of kLinear and kCosine
  int step_size = 1;  // steps of kStep after which it multiplies by gamma
  double gamma = 0.1;
};

// The treatment of a step whose loss or gradient is infinite or not a number: the run ends, the step's
// updates are left out, or training goes on with such values.
enum class NonFinite : uint8_t { kStop, kSkip, kContinue };

struct TrainSpec {
  int steps = 1;
  int batch = 1;         // samples a step
  int microbatches = 1;  // B; divides batch
  uint64_t seed = 1;
  OptimizerSpec optimizer;
  LearningRateSchedule lr_schedule = {};
  double clip_norm = 0;  // largest global norm of a step's gradients; 0 for no limit
  NonFinite non_finite = NonFinite::kStop;

  // Returns true if the norm of all stages' gradients is taken before any of them is updated.
  bool takes_norm() const { return clip_norm > 0 || non_finite == NonFinite::kSkip; }
};

// A schedule by name with its parameters as text, as `lpp` {groups: 2, ranks: 4}; families.h makes the
// schedule from it.
struct ScheduleSpec {
  std::string name;
  std::map<std::string, std::string> parameters;
  std::string rule = "sync";
  std::string reduction = "ordered";
  // The treatment of a forward's activations until its backward: retain, recompute or offload. One word for
  // all stages, or one for each, with `/` between them: "recompute/retain".
  std::string activations = "retain";
  double planned_step = 0;  // seconds that its plan predicts for a step; 0 without a plan that is in seconds
};

// Says whether a run saves checkpoints, when it does so on the way, and how many of these stay.
struct CheckpointSpec {
  bool none = false;      // true if nothing is saved, neither the initial weights nor those at the end
  int every_steps = 0;    // after each multiple of so many; 0 for none
  int every_seconds = 0;  // so long after the last one began; 0 for none
  int keep = 2;           // the newest that stay; older ones are removed once a newer is complete

  bool periodic() const { return every_steps > 0 || every_seconds > 0; }
};

// The time after which a job that still runs is given up, with the process that runs it.
struct JobTimeoutSpec {
  double times = 10;     // times the longest that a job of its kind and stage has taken
  double at_least = 60;  // seconds, whatever that is
  double first = 3600;   // seconds, while no job of its kind and stage has ended
  friend bool operator==(const JobTimeoutSpec&, const JobTimeoutSpec&) = default;
};

// Says whether the run goes on under a better schedule by itself.
struct ReplanSpec {
  double gain = 0;  // part of a step's time that it has to save; 0 for never
  int steps = 20;   // least number of steps from one such change to the next

  bool any() const { return gain > 0; }
};

// Held-out data on which loss and accuracy are computed during the training.
struct ValidateSpec {
  DataSpec data;
  int every = 0;    // after each multiple of so many steps, and after the last step; 0 for never
  int samples = 0;  // the first so many of the data; 0 for all

  bool any() const { return every > 0; }
};

// The state from which a run goes on: a checkpoint of an earlier run of the same file, or copies that
// processes keep in memory of an attempt of this run.
struct ResumeSpec {
  std::string checkpoint;  // folder of the checkpoint; "" for none
  int step = 0;            // first step to make; that many updates made the weights
  bool copies = false;     // true for copies in memory, which only a coordinator knows of
};

struct RunSpec {
  std::string name;
  ModelSpec model;
  // Weights that the run begins with, a safetensors file or a folder of them; "" for those of the seed, or of
  // the exported model. A checkpoint that it resumes from goes before.
  std::string weights;
  DataSpec data;
  TrainSpec train;
  std::vector<int> layers_of_stage;  // the cut: layers of each stage, in order; size S
  // Stages at the front that are a tied parameter each, for which the schedule has no rank (stage_cut.h).
  int tied_stages = 0;
  ScheduleSpec schedule;
  int64_t memory = 0;  // bytes that each rank may use; 0 for no budget
  // The bytes that its jobs take while they run, as a profile measured them; absent: they are bounded by
  // formulas.
  std::optional<MeasuredBuffers> buffers;
  // True if its processes share no memory, so that ranks of different ones get copies of each other's
  // tensors.
  bool separate_memory = false;
  Precision precision = Precision::kFloat32;
  Kernels kernels = Kernels::kDeterministic;
  CheckpointSpec checkpoint;
  // Losses of a process in a row, without a new step between them, behind which the run begins again from its
  // newest checkpoint; 0 to fail at the first.
  int restarts = 3;
  // Processes that keep a second copy of what a process's ranks save, step by step: 1, or 0 for none.
  int redundancy = 0;
  JobTimeoutSpec job_timeout;
  ReplanSpec replan;
  std::optional<NetworkSpec>
      network;  // on which the run is predicted; absent: equal ranks, links that take no time
  ValidateSpec validate;
  bool record_hashes = false;  // the hashes of each job's values are recorded (proto/session/job_hashes.h)
  ResumeSpec resume;
  // The step of which the gradient of each micro-batch is checked, because one was not finite before; -1 for
  // none. The file does not have it.
  int examined_step = -1;
  int until = 0;  // step before which the run ends; 0 to make all

  // Return the bounds of the steps: the run makes those from first_step() on and ends before end_step().
  int first_step() const { return resume.step; }
  int end_step() const { return until > 0 ? until : train.steps; }
  int steps_to_make() const { return end_step() - first_step(); }
  // Returns true if the weights that so many updates have made are validated.
  bool ValidatesAfter(int step) const {
    return validate.any() && step > 0 && (step % validate.every == 0 || step == end_step());
  }
  int stages() const { return static_cast<int>(layers_of_stage.size()); }
  // Returns the stages that the schedule lays out on ranks.
  int placed_stages() const { return stages() - tied_stages; }
  int microbatch_samples() const { return train.batch / train.microbatches; }
};

absl::StatusOr<RunSpec> ParseRunSpec(const nlohmann::json& file);

// Cuts the run's model as users write it, with tied layers in the first stage (stage_cut.h).
void SetCut(std::vector<int> as_written, RunSpec* run);
std::vector<int> CutAsWritten(const RunSpec& run);

// Checks that the steps that the run makes are some of those that it has, for a run whose `until` or `resume`
// was set after it was parsed. Failure as ParseRunSpec.
absl::Status CheckSteps(const RunSpec& run);

// Checks that there are weights to train: an exported model may come without. InvalidArgument with what to
// do.
absl::Status CheckHasWeights(const RunSpec& run);

// Returns the run with its held-out data in the place of its training data: what an evaluation of them is
// given.
RunSpec ValidationRun(const RunSpec& run);

// Returns the inverse: ParseRunSpec(ToJson(spec)) == spec; stages always as the list of layers.
nlohmann::json ToJson(const RunSpec& spec);

// Parses `name[,key=value..]` as on the command line, e.g. "lpp,groups=2,ranks=4".
absl::StatusOr<ScheduleSpec> ParseScheduleText(absl::string_view text);
std::string ToText(const ScheduleSpec& schedule);

}  // namespace weft

#endif  // WEFT_RUN_RUN_SPEC_H_
