#include "client/files/profile.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"
#include "client/files/text_file.h"
#include "nlohmann/json.hpp"
#include "run/file_section.h"
#include "run/json_text.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/stage_cut.h"
#include "schedules/families/leading_stages.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr double kMax = 1e30;
constexpr int kMaxSamples = 1 << 30;

// Reads the layers that read a tied parameter, which is part `number`.
std::vector<int> ReadReaders(const Json& list, const std::string& path, int number, int parts,
                             absl::Status& status) {
  std::vector<int> readers;
  const auto refuse = [&] {
    if (status.ok())
      status = ErrorAt(path, "must be the numbers of one or two layers behind it, the smaller first");
    return std::vector<int>();
  };
  if (!list.is_array() || list.empty() || list.size() > 2) return refuse();
  for (const Json& reader : list) {
    const int64_t at = reader.is_number_integer() ? reader.get<int64_t>() : 0;
    if (at <= (readers.empty() ? number : readers.back()) || at >= parts) return refuse();
    readers.push_back(static_cast<int>(at));
  }
  return readers;
}

// Returns an error for tied parameters that are not layers at the front, or read each other.
absl::Status CheckTied(const Profile& profile) {
  const int tied = profile.tied_layers();
  for (int p = 0; p < static_cast<int>(profile.parts.size()); ++p) {
    const std::vector<int>& readers = profile.parts[p].readers;
    if (readers.empty()) continue;
    const std::string path = absl::StrCat(profile.of_stages ? "stages[" : "layers[", p, "].readers");
    if (profile.of_stages) return ErrorAt(path, "is of layers; stages do not say which part is tied");
    if (p >= tied) return ErrorAt(path, "is of tied parameters, which are the first layers");
    if (readers[0] < tied) return ErrorAt(path, "names a tied parameter, which reads nothing");
  }
  return absl::OkStatus();
}

ProfilePart ReadPart(const Json& value, const std::string& path, absl::Status& status) {
  ProfilePart part;
  std::vector<std::string> keys = {
      "name", "forward", "backward",         "backward_input", "backward_weight", "reduce",      "accumulate",
      "cold", "update",  "activation_bytes", "output_bytes",   "weight_bytes",    "state_bytes", "readers"};
  for (const LayerBuffersField& field : kLayerBuffersFields) keys.emplace_back(field.in_profile);
  FileSection section(value, path, keys, status);
  section.Require("forward", "forward: 0.01");
  section.Read("forward", part.forward, 0, kMax);
  const bool halves = section.Has("backward_input") && section.Has("backward_weight");
  section.Read("backward_input", part.backward_input, 0, kMax);
  section.Read("backward_weight", part.backward_weight, 0, kMax);
  part.backward = halves ? part.backward_input + part.backward_weight : 2 * part.forward;
  section.Read("backward", part.backward, 0, kMax);
  if (!section.Has("backward_input")) part.backward_input = part.backward / 2;
  if (!section.Has("backward_weight")) part.backward_weight = part.backward / 2;
  section.Read("reduce", part.reduce, 0, kMax);
  section.Read("accumulate", part.accumulate, 0, kMax);
  section.Read("cold", part.cold, 0, kMax);
  section.Read("update", part.update, 0, kMax);
  section.Read("activation_bytes", part.activation_bytes, 0, kMaxBufferBytes);
  part.output_bytes = part.activation_bytes;
  section.Read("output_bytes", part.output_bytes, 0, kMaxBufferBytes);
  section.Read("weight_bytes", part.weight_bytes, 0, kMaxBufferBytes);
  section.Read("state_bytes", part.state_bytes, 0, kMaxBufferBytes);
  return part;
}

// Reads what the jobs of a layer take while they run. Returns a key that the layer lacks; null if it has all.
const char* ReadLayerBuffers(const Json& value, const std::string& path, LayerBuffers* layer,
                             absl::Status& status) {
  for (const LayerBuffersField& field : kLayerBuffersFields) {
    const auto found = value.find(field.in_profile);
    if (found == value.end()) return field.in_profile;
    if (status.ok() && (!found->is_number() || !(*found >= 0) || !(*found <= kMaxBufferBytes)))
      status = ErrorAt(absl::StrCat(path, ".", field.in_profile), "must be a number of bytes");
    if (status.ok()) layer->*field.bytes = WholeBytes(found->get<double>());
  }
  return nullptr;
}

// Reads the buffers of a profile's layers. Sets none, but what they lack, unless all layers have them and the
// samples are known.
void ReadBuffers(const Json& file, Profile* profile, absl::Status& status) {
  profile->lacks_for_buffers = "it is of stages, not of layers";
  if (profile->of_stages) return;
  MeasuredBuffers buffers;
  buffers.samples = profile->samples;
  const Json& layers = file["layers"];
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string path = absl::StrCat("layers[", l, "]");
    const char* const lacks = ReadLayerBuffers(layers[l], path, &buffers.layers.emplace_back(), status);
    if (!status.ok()) return;
    if (lacks != nullptr) {
      profile->lacks_for_buffers = absl::StrCat(path, " has no `", lacks, "`");
      return;
    }
  }
  profile->lacks_for_buffers = profile->samples == 0 ? "it has no `samples`" : "";
  if (profile->samples == 0) return;
  const auto standing = file.find("standing_buffer_bytes");
  if (standing != file.end()) buffers.standing = WholeBytes(standing->get<double>());
  profile->buffers = std::move(buffers);
}

absl::StatusOr<Profile> ParseProfile(const Json& json) {
  absl::Status status;
  Profile profile;
  FileSection file(json, "",
                   {"name", "unit", "layers", "stages", "overlapped", "bandwidth", "latency", "samples",
                    "activations", "host_bandwidth", "network", "standing_buffer_bytes", "dispatch"},
                   status);
  if (status.ok() && file.Has("layers") == file.Has("stages")) {
    status = ErrorAt("", "must have a list of layers, or a list of stages");
  }
  if (!status.ok()) return status;
  profile.of_stages = file.Has("stages");
  file.Read("unit", profile.unit);
  const std::string list = profile.of_stages ? "stages" : "layers";
  const Json& parts = file.At(list);
  if (!parts.is_array() || parts.empty()) return ErrorAt(list, "must be a list of at least one part");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string path = absl::StrCat(list, "[", i, "]");
    profile.parts.push_back(ReadPart(parts[i], path, status));
    if (!status.ok() || !parts[i].contains("readers")) continue;
    profile.parts.back().readers = ReadReaders(parts[i]["readers"], path + ".readers", static_cast<int>(i),
                                               static_cast<int>(parts.size()), status);
  }
  if (status.ok()) status = CheckTied(profile);
  file.Read("overlapped", profile.overlapped, 0, kMax);
  file.Read("bandwidth", profile.bandwidth, kLeastOfALink, kMax);
  file.Read("latency", profile.latency, 0, kMax);
  file.Read("dispatch", profile.dispatch, 0, kMax);
  file.Read("samples", profile.samples, 1, kMaxSamples);
  file.Read("activations", profile.activations);
  file.Read("host_bandwidth", profile.host_bandwidth, kLeastOfALink, kMax);
  if (file.Has("network")) profile.network = ReadNetworkSpec(file.At("network"), "network", status);
  double standing = 0;
  file.Read("standing_buffer_bytes", standing, 0, kMaxBufferBytes);
  if (status.ok()) ReadBuffers(json, &profile, status);
  if (!status.ok()) return status;
  return profile;
}

// Returns the layers as far as a cut asks for them: their times in place of FLOPs, and who reads what.
std::vector<LayerCount> LayersOf(const Profile& profile) {
  const int tied = profile.tied_layers();
  std::vector<LayerCount> layers(profile.parts.size());
  for (int l = 0; l < static_cast<int>(layers.size()); ++l) {
    const ProfilePart& part = profile.parts[l];
    layers[l].forward_flops = part.forward + part.backward;
    layers[l].output.by_sample = l >= tied;
    if (l < tied) layers[l].output.sizes = {1};
    for (const int reader : part.readers) layers[reader].inputs.push_back(l);
  }
  for (int l = tied + 1; l < static_cast<int>(layers.size()); ++l) layers[l].inputs.push_back(l - 1);
  return layers;
}

std::vector<int> CutByTime(const Profile& profile, int stages) {
  std::vector<LayerCount> layers = LayersOf(profile);
  for (LayerCount& layer : layers) layer.inputs.clear();  // cut anywhere, as a chain
  return CutStages(layers, stages);
}

// Checks a cut of a profile's layers into so many stages.
absl::Status CheckCutOfProfile(const Profile& profile, int stages, const std::vector<int>& layers_of_stage) {
  if (static_cast<int>(layers_of_stage.size()) != stages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the layers are cut into %d stages, and the schedule is of %d", layers_of_stage.size(), stages));
  }
  const int parts = static_cast<int>(profile.parts.size());
  int64_t layers = 0;
  for (const int count : layers_of_stage) {
    if (count < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a stage of the model has %d layers; it needs at least 1", count));
    }
    layers += count;
  }
  if (layers == parts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the profile is of %d layers, the model has %d", parts, layers));
}

}  // namespace

std::string ProfileHash(absl::string_view text) { return absl::StrFormat("%016x", Fnv1a().Add(text).hash()); }

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  const auto text = ReadTextFile(path, kMaxProfileBytes, "a profile");
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> json = ParseJson(*text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(path, " ", json.status().message()));
  auto profile = ParseProfile(*json);
  if (!profile.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", profile.status().message()));
  return profile;
}

absl::StatusOr<Profile> ReadProfileWithBuffers(const std::string& path) {
  auto profile = ReadProfile(path);
  if (!profile.ok() || profile->buffers.has_value()) return profile;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " does not say what jobs take while they run: ", profile->lacks_for_buffers,
                   "; measure it with weft profile"));
}

absl::Status CheckSameModel(const std::string& path, const Profile& profile, const RunSpec& run) {
  if (profile.of_stages) return absl::OkStatus();
  const std::vector<ProfilePart> counted = CountedProfile(run, /*flops=*/1).parts;
  std::string differs;
  if (profile.parts.size() != counted.size()) {
    differs = absl::StrFormat("has %d layers, and the model of the run %s has %d layers",
                              profile.parts.size(), run.name, counted.size());
  }
  for (size_t l = 0; l < counted.size() && differs.empty(); ++l) {
    const double bytes = profile.parts[l].weight_bytes;
    if (bytes == 0 || bytes == counted[l].weight_bytes) continue;
    differs = absl::StrFormat(
        "is of another model: its layer %d has %.0f bytes of weights, and that of the run %s has %.0f", l,
        bytes, run.name, counted[l].weight_bytes);
  }
  if (differs.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " ", differs, "; measure it with weft profile"));
}

double WeightBytesOf(const RunSpec& run) {
  double bytes = 0;
  for (const ProfilePart& part : CountedProfile(run, /*flops=*/1).parts) bytes += part.weight_bytes;
  return bytes;
}

Profile CountedProfile(const RunSpec& run, double flops) {
  const int copies = 1 + OptimizerBuffers(run.train.optimizer);
  constexpr double kFloat = 4;
  const double samples = run.microbatch_samples();
  Profile profile;
  profile.samples = run.microbatch_samples();
  profile.activations = "retain";
  const auto element = static_cast<double>(ComputeBytes(run.precision));
  for (const LayerCount& layer : CountLayers(run.model, run.precision)) {
    ProfilePart part;
    part.forward = layer.forward_flops * samples / flops;
    part.backward = 2 * part.forward;
    part.backward_input = part.backward_weight = part.forward;
    part.activation_bytes = static_cast<double>(KeptTensorBytes({layer}, 0, 1, run.microbatch_samples()));
    part.output_bytes = element * static_cast<double>(layer.output.elements(run.microbatch_samples()));
    part.weight_bytes = kFloat * static_cast<double>(layer.parameters);
    part.state_bytes = copies * part.weight_bytes;
    // This is the copy that layers compute with.
    if (element < kFloat) part.state_bytes += element * static_cast<double>(layer.parameters);
    profile.parts.push_back(part);
  }
  return profile;
}

Profile WithSamples(const Profile& profile, int samples, int tied) {
  Profile scaled = profile;
  const double factor = static_cast<double>(samples) / profile.samples;
  scaled.samples = samples;
  scaled.overlapped *= factor;
  for (size_t p = static_cast<size_t>(tied); p < scaled.parts.size(); ++p) {
    ProfilePart& part = scaled.parts[p];
    for (double* of_microbatch : {&part.forward, &part.backward, &part.backward_input, &part.backward_weight,
                                  &part.activation_bytes, &part.output_bytes}) {
      *of_microbatch *= factor;
    }
  }
  return scaled;
}

absl::StatusOr<Profile> ProfileFor(const Profile& profile, const RunSpec& run) {
  Profile of_run = profile;
  const int parts = static_cast<int>(profile.parts.size());
  int tied = TiedLayers(CountLayers(run.model, run.precision));
  if (profile.of_stages) {
    if (parts != run.stages() && parts != run.placed_stages()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the profile is of %d stages, not of %d", parts, run.placed_stages()));
    }
    // Only a stage of one layer is a tied parameter and nothing else.
    const std::vector<int>& cut = run.layers_of_stage;
    const auto apart = std::find_if(cut.begin(), cut.end(), [](int layers) { return layers != 1; });
    tied = std::min(tied, static_cast<int>(apart - cut.begin()));
    of_run.parts.insert(of_run.parts.begin(), run.stages() - parts, ProfilePart());
  }
  return of_run.samples > 0 ? WithSamples(of_run, run.microbatch_samples(), tied) : of_run;
}

int Profile::tied_layers() const {
  const auto chain =
      std::find_if(parts.begin(), parts.end(), [](const ProfilePart& part) { return part.readers.empty(); });
  return static_cast<int>(chain - parts.begin());
}

absl::Status ApplyToSchedule(const Profile& profile, const std::vector<int>& layers_of_stage,
                             RunSchedule* schedule, SimulationOptions* options) {
  const int stages = schedule->scheme.stages;
  if (profile.tied_layers() == 0 || !schedule->terms.inputs.empty())
    return ApplyProfile(profile, stages, layers_of_stage, options);
  const std::vector<LayerCount> layers = LayersOf(profile);
  StageCut cut;
  if (!layers_of_stage.empty()) {
    if (absl::Status fits = CheckCutOfProfile(profile, stages, layers_of_stage); !fits.ok()) return fits;
    cut = WithTiedStages(layers, layers_of_stage);
  } else if (stages <= MostStages(layers)) {
    cut = CutBesideTied(layers, stages);
  }
  if (cut.layers_of_stage.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the profile's %d layers cannot be cut into %d stages beside its tied parameters",
                        layers.size(), stages));
  }
  AddLeadingStages(cut.tied_stages, &schedule->scheme);
  schedule->terms.inputs = StageInputs(layers, cut.layers_of_stage);
  return ApplyProfile(profile, schedule->scheme.stages, cut.layers_of_stage, options);
}

absl::Status ApplyProfile(const Profile& profile, int stages, const std::vector<int>& layers_of_stage,
                          SimulationOptions* options) {
  const int parts = static_cast<int>(profile.parts.size());
  std::vector<int> cut(parts, 1);
  if (profile.of_stages && parts != stages) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the profile is of %d stages, not of %d", parts, stages));
  }
  if (!profile.of_stages) {
    if (parts < stages) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the profile's %d layers cannot be cut into %d stages", parts, stages));
    }
    cut = layers_of_stage.empty() ? CutByTime(profile, stages) : layers_of_stage;
    if (absl::Status fits = CheckCutOfProfile(profile, stages, cut); !fits.ok()) return fits;
  }
  const auto times = [&](JobKind kind) -> std::vector<double>& {
    return options->duration[static_cast<int>(kind)];
  };
  for (auto& duration : options->duration) duration.assign(stages, 0);
  for (auto* of_stages : {&options->accumulate, &options->cold, &options->activation, &options->output,
                          &options->weight, &options->state}) {
    of_stages->assign(stages, 0);
  }
  int next = 0;
  for (int s = 0; s < stages; ++s) {
    ProfilePart stage;
    for (int i = 0; i < cut[s]; ++i) {
      const ProfilePart& part = profile.parts[next++];
      for (double ProfilePart::*field : kSummedOfParts) stage.*field += part.*field;
      stage.output_bytes = part.output_bytes;
    }
    times(JobKind::kForward)[s] = stage.forward;
    times(JobKind::kBackward)[s] = stage.backward;
    times(JobKind::kBackwardInput)[s] = stage.backward_input;
    times(JobKind::kBackwardWeight)[s] = stage.backward_weight;
    times(JobKind::kReduce)[s] = stage.reduce;
    times(JobKind::kUpdate)[s] = stage.update;
    options->accumulate[s] = stage.accumulate;
    options->cold[s] = stage.cold;
    options->activation[s] = stage.activation_bytes;
    options->output[s] = stage.output_bytes;
    options->weight[s] = stage.weight_bytes;
    options->state[s] = stage.state_bytes;
  }
  // Nobody waits for a gradient of the first stage's input, so its backward_input computes nothing, and its
  // backward_weight all. A profile of stages has measured that.
  if (!profile.of_stages) {
    times(JobKind::kBackwardWeight)[0] += times(JobKind::kBackwardInput)[0];
    times(JobKind::kBackwardInput)[0] = 0;
  }
  options->dispatch = profile.dispatch;
  if (profile.overlapped > 0) options->overlapped = profile.overlapped;
  if (profile.bandwidth > 0) options->bandwidth = profile.bandwidth;
  if (profile.latency > 0) options->latency = profile.latency;
  if (profile.network.has_value()) ApplyNetwork(*profile.network, options);
  return absl::OkStatus();
}

}  // namespace weft
