#include "client/files/measured_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/typical_value.h"
#include "client/files/measured_network.h"
#include "client/files/profile.h"
#include "coordinator/record/run_recorder.h"
#include "coordinator/replanning/measured_jobs.h"
#include "run/measured_buffers.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/job_bytes.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

using Times = std::array<std::vector<double>, kJobKinds>;  // by kind and layer

double LeastOf(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

// Selects the jobs of a rank's first micro-batch of a step, or of its others.
enum class Microbatches { kFirst, kOthers, kAll };

// Returns the least micro-batch of each rank.
std::map<Rank, int> FirstMicrobatches(const Trace& trace) {
  std::map<Rank, int> first;
  for (const DrawnJob& j : trace.jobs) {
    if (!HasMicrobatch(j.job.kind)) continue;
    int& least = first.try_emplace(j.rank, j.job.microbatch).first->second;
    least = std::min(least, j.job.microbatch);
  }
  return first;
}

// Returns the time that `one_of` tells from those of each kind and layer, on a rank of speed 1. `speeds` are
// those of the trace's ranks; empty if all are equal.
template <class OneOf>
Times TimesOf(const Trace& trace, size_t layers, OneOf one_of, const std::vector<double>& speeds = {},
              Microbatches of = Microbatches::kAll) {
  std::array<std::vector<std::vector<double>>, kJobKinds> samples;
  for (auto& of_kind : samples) of_kind.resize(layers);
  const bool several =
      std::any_of(trace.jobs.begin(), trace.jobs.end(), [](const DrawnJob& j) { return j.job.step > 0; });
  const std::map<Rank, int> first = FirstMicrobatches(trace);
  for (const DrawnJob& j : trace.jobs) {
    if (several && j.job.step == 0) continue;  // its caches are cold, and its memory is not there yet
    if (of != Microbatches::kAll && HasMicrobatch(j.job.kind) &&
        (j.job.microbatch == first.at(j.rank)) != (of == Microbatches::kFirst))
      continue;
    if (static_cast<size_t>(j.job.stage) < layers) {
      const double speed = speeds.empty() ? 1 : speeds[j.rank];
      samples[static_cast<int>(j.job.kind)][j.job.stage].push_back((j.end - j.start) * speed);
    }
  }
  Times times;
  for (int k = 0; k < kJobKinds; ++k) {
    for (std::vector<double>& of_layer : samples[k]) times[k].push_back(one_of(std::move(of_layer)));
  }
  return times;
}

Times TypicalTimes(const Trace& trace, size_t layers) {
  return TimesOf(trace, layers, TrimmedMeanOf<double>);
}

// Returns the time in which a rank of speed 1 adds the gradient of one micro-batch of each layer to a sum; 0
// if it is not known. Each rank of the trace sums a slice of each gradient: in all, as many bytes as the
// gradients of so many whole micro-batches as it computes itself. The sums before the last gradient came are
// the delay of the reduce. Jobs of devices have none, so that their time is not known.
std::vector<double> AccumulateTimes(const RunSpec& together, const Trace& trace, size_t layers,
                                    const std::vector<double>& speeds) {
  const double own = together.train.microbatches / static_cast<double>(speeds.size());
  std::vector<std::vector<double>> samples(layers);
  for (const DrawnJob& j : trace.jobs) {
    if (j.job.kind == JobKind::kReduce && j.job.step > 0 && j.delay > 0 &&
        static_cast<size_t>(j.job.stage) < layers)
      samples[j.job.stage].push_back((j.end - j.start + j.delay) * speeds[j.rank] / own);
  }
  std::vector<double> times;
  for (std::vector<double>& of_layer : samples) times.push_back(TrimmedMeanOf(std::move(of_layer)));
  return times;
}

// The gaps before a rank's jobs of a step.
struct Gaps {
  double idle = 0;  // seconds in which the rank had work and computed nothing
  int count = 0;
};

// Returns the gaps of a rank by step, but for the first step. `jobs` and `idle` are sorted. A trace keeps the
// last idle times alone, so that gaps before these are not known.
std::map<int, Gaps> GapsOf(const std::vector<DrawnJob>& jobs, const std::vector<DrawnIdle>& idle) {
  std::map<int, Gaps> gaps;
  auto next = idle.begin();
  for (size_t i = 1; i < jobs.size() && !idle.empty(); ++i) {
    const DrawnJob &before = jobs[i - 1], &job = jobs[i];
    double seconds = 0;
    for (; next != idle.end() && next->start < job.start; ++next) {
      if (next->start >= before.start && next->cause == IdleCauseName(IdleCause::kDispatch))
        seconds += next->end - next->start;
    }
    if (job.job.step == 0 || before.end < idle.front().start) continue;
    Gaps& of_step = gaps[job.job.step];
    of_step.idle += seconds;
    ++of_step.count;
  }
  return gaps;
}

// Returns the mean time before a job for which a rank of speed 1 has work and computes nothing: messages take
// processor time of the ranks, and threads are woken. Steps that are far off do not count.
double DispatchTime(const Trace& trace, const std::vector<double>& speeds) {
  std::vector<std::vector<DrawnIdle>> idle(trace.ranks);
  std::vector<std::vector<DrawnJob>> jobs(trace.ranks);
  for (const DrawnIdle& i : trace.idle) idle[i.rank].push_back(i);
  for (const DrawnJob& j : trace.jobs) jobs[j.rank].push_back(j);
  const auto by_start = [](const auto& a, const auto& b) { return a.start < b.start; };
  std::vector<double> of_steps;
  for (Rank rank = 0; rank < trace.ranks; ++rank) {
    std::sort(idle[rank].begin(), idle[rank].end(), by_start);
    std::stable_sort(jobs[rank].begin(), jobs[rank].end(), by_start);
    for (const auto& [step, gaps] : GapsOf(jobs[rank], idle[rank]))
      of_steps.push_back(gaps.idle / gaps.count * speeds[rank]);
  }
  return TrimmedMeanOf(std::move(of_steps));
}

// Returns the extra time of the first micro-batch on each layer, in forward and backward together. Noise of
// single layers does not add up: the layers together get the extra time of the model.
std::vector<double> ColdTimes(const Times& first, const Times& others, size_t layers) {
  std::vector<double> times(layers, 0);
  double longer = 0, all = 0;
  for (size_t i = 0; i < layers; ++i) {
    double difference = 0;
    for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
      const double a = first[static_cast<int>(kind)][i], b = others[static_cast<int>(kind)][i];
      if (a > 0 && b > 0) difference += a - b;
    }
    all += difference;
    times[i] = std::max(0.0, difference);
    longer += times[i];
  }
  for (double& time : times) time *= all > 0 ? all / longer : 0;
  return times;
}

// Returns the layers that read the output of this one.
std::vector<size_t> ReadersOf(const std::vector<LayerCount>& layers, size_t layer) {
  std::vector<size_t> readers;
  for (size_t reader = layer + 1; reader < layers.size(); ++reader) {
    const std::vector<int>& read = layers[reader].inputs;
    if (std::count(read.begin(), read.end(), static_cast<int>(layer)) > 0) readers.push_back(reader);
  }
  return readers;
}

// The bytes that a training's jobs took, from its summary.
class JobFigures {
 public:
  explicit JobFigures(const nlohmann::json& summary) {
    if (!summary.is_object() || !summary.contains("job_bytes")) return;
    for (const nlohmann::json& job : summary["job_bytes"]) {
      figures_[{job.value("kind", ""), job.value("stage", -1)}] = {
          job.value("before", int64_t{0}), job.value("buffers", int64_t{0}),
          job.value("most", int64_t{0}),   job.value("left_buffers", int64_t{0}),
          job.value("left", int64_t{0}),   job.value("passing", int64_t{0})};
    }
  }
  bool known() const { return !figures_.empty(); }
  JobBytes Of(JobKind kind, int stage) const {
    const auto found = figures_.find({std::string(JobKindName(kind)), stage});
    return found == figures_.end() ? JobBytes() : found->second;
  }

 private:
  std::map<std::pair<std::string, int>, JobBytes> figures_;
};

// Returns the speeds of ranks that have done the same jobs, by all but the first step.
std::vector<double> SpeedsOf(const RunSpec& run, const Trace& trace) {
  MeasuredJobs jobs(trace.ranks, run.stages());
  for (const DrawnJob& j : trace.jobs) {
    if (j.job.step > 0) jobs.Add(j.rank, j.job, j.end - j.start);
  }
  return CostsOfJobs(run, jobs).speeds;
}

}  // namespace

OrderedJson ProfileOf(const RunSpec& run, const Trace& whole, const Trace* split, const MeasuredLink& link) {
  const std::vector<LayerCount> layers = CountLayers(run.model);
  // Weights and tensors between layers have the sizes of their numbers, so they need no measurement.
  const Profile counted = CountedProfile(run, 1e9);
  const auto times = TypicalTimes(whole, layers.size());
  const auto time = [&](JobKind kind, size_t layer) { return times[static_cast<int>(kind)][layer]; };
  OrderedJson json = {{"name", run.name}, {"unit", "s"}, {"samples", run.microbatch_samples()}};
  if (SplitActivations(run.schedule).size() == 1) json["activations"] = run.schedule.activations;
  json["layers"] = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool reported = i < whole.activation_bytes.size();
    const double activation_bytes = reported ? whole.activation_bytes[i] : counted.parts[i].activation_bytes;
    json["layers"].push_back({{"name", layers[i].name},
                              {"forward", time(JobKind::kForward, i)},
                              {"backward", time(JobKind::kBackward, i)},
                              {"update", time(JobKind::kUpdate, i)},
                              {"activation_bytes", std::llround(activation_bytes)},
                              {"output_bytes", std::llround(counted.parts[i].output_bytes)},
                              {"weight_bytes", std::llround(counted.parts[i].weight_bytes)},
                              {"state_bytes", std::llround(counted.parts[i].state_bytes)}});
    if (static_cast<int>(i) < TiedLayers(layers)) json["layers"][i]["readers"] = ReadersOf(layers, i);
  }
  if (split != nullptr) {
    const auto halves = TypicalTimes(*split, layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      json["layers"][i]["backward_input"] = halves[static_cast<int>(JobKind::kBackwardInput)][i];
      json["layers"][i]["backward_weight"] = halves[static_cast<int>(JobKind::kBackwardWeight)][i];
    }
  }
  if (link.bandwidth > 0) json["bandwidth"] = link.bandwidth;
  if (link.latency > 0) json["latency"] = link.latency;
  return json;
}

int MicrobatchesTogether(const RunSpec& layers, int ranks) {
  constexpr int64_t kWanted = 4, kMostJobs = kTracedJobs / 2;  // of a step
  const int64_t by_batch = kMaxBatch / (int64_t{ranks} * layers.microbatch_samples());
  // Each rank has a forward and a backward of each layer and micro-batch, and a reduce and an update.
  const int64_t by_trace = kMostJobs / (int64_t{2} * ranks * layers.stages()) - 1;
  return static_cast<int>(std::max<int64_t>(1, std::min({kWanted, by_batch, by_trace})));
}

std::vector<double> SlowToTogether(const RunSpec& together, const Trace& trace, OrderedJson* profile) {
  OrderedJson& layers = (*profile)["layers"];
  // Those of the trace's ranks, and those that the network has: the fastest of these is 1.
  std::vector<double> speeds = SpeedsOf(together, trace), joined = JoinNearSpeeds(speeds);
  const double fastest = *std::max_element(joined.begin(), joined.end());
  for (std::vector<double>* of_ranks : {&speeds, &joined}) {
    for (double& speed : *of_ranks) speed /= fastest;
  }
  const auto times_of = [&](Microbatches of) {
    return TimesOf(trace, layers.size(), TrimmedMeanOf<double>, speeds, of);
  };
  const Times first = times_of(Microbatches::kFirst);
  const Times times =
      together.train.microbatches > static_cast<int>(speeds.size()) ? times_of(Microbatches::kOthers) : first;
  const std::vector<double> accumulate = AccumulateTimes(together, trace, layers.size(), speeds);
  const std::vector<double> cold = ColdTimes(first, times, layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto slow = [&](JobKind kind, const char* key, std::initializer_list<const char*> like_it) {
      const double alone = layers[i][key], time = times[static_cast<int>(kind)][i];
      if (alone <= 0 || time <= 0) return;
      layers[i][key] = time;
      for (const char* const other : like_it) {
        if (layers[i].contains(other)) layers[i][other] = layers[i][other].get<double>() * time / alone;
      }
    };
    slow(JobKind::kForward, "forward", {});
    slow(JobKind::kBackward, "backward", {"backward_input", "backward_weight", "update"});
    if (cold[i] > 0) layers[i]["cold"] = cold[i];
    if (accumulate[i] > 0) layers[i]["accumulate"] = accumulate[i];
  }
  if (const double dispatch = DispatchTime(trace, speeds); dispatch > 0) (*profile)["dispatch"] = dispatch;
  return joined;
}

void AddBuffers(const RunSpec& run, const nlohmann::json& whole, const nlohmann::json& split,
                OrderedJson* profile) {
  const JobFigures of_whole(whole), of_split(split);
  if (!of_whole.known() || !of_split.known()) return;         // of a worker that does not measure it
  const std::vector<StageMemory> counted = CountStages(run);  // its stages are layers
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  for (size_t l = 0; l < layers.size(); ++l) {
    const int stage = static_cast<int>(l);
    int64_t input_gradients = 0;
    for (const int input : layers[l].inputs) input_gradients += counted[input].output;
    LayerBuffers buffers;
    const JobBytes forward = of_whole.Of(JobKind::kForward, stage);
    buffers.forward = std::max(forward.passing, forward.most - forward.left);
    buffers.backward = of_whole.Of(JobKind::kBackward, stage).buffers;
    buffers.backward_beyond = of_whole.Of(JobKind::kBackward, stage).most;
    buffers.update = of_whole.Of(JobKind::kUpdate, stage).buffers;
    const JobBytes first = of_split.Of(JobKind::kBackwardInput, stage);
    buffers.backward_input = first.buffers;
    buffers.backward_weight = of_split.Of(JobKind::kBackwardWeight, stage).buffers;
    buffers.between = std::max<int64_t>(0, first.left_buffers - input_gradients);
    buffers.between_beyond = std::max<int64_t>(0, first.left - input_gradients);
    for (const LayerBuffersField& field : kLayerBuffersFields)
      (*profile)["layers"][l][field.in_profile] = buffers.*field.bytes;
  }
  // Nothing of a micro-batch is there when the first forward of a step begins.
  const int64_t standing =
      std::max(of_whole.Of(JobKind::kForward, 0).before, of_split.Of(JobKind::kForward, 0).before);
  if (standing > 0) (*profile)["standing_buffer_bytes"] = standing;
}

// Returns the bandwidth of copies. It compares the shortest times, because other programs on the core disturb
// even the median by more than the copies cost.
double HostBandwidthOf(const RunSpec& run, const Trace& retained, const Trace& offloaded) {
  const std::vector<StageMemory> layers = CountStages(run);
  const Times without = TimesOf(retained, layers.size(), LeastOf);
  const Times with = TimesOf(offloaded, layers.size(), LeastOf);
  double bytes = 0, seconds = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const JobKind kind : {JobKind::kForward, JobKind::kBackward}) {
      bytes += static_cast<double>(layers[l].offloaded);
      seconds += with[static_cast<int>(kind)][l] - without[static_cast<int>(kind)][l];
    }
  }
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace weft
