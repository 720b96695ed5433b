#include "coordinator/replanning/measured_jobs.h"

#include <map>
#include <tuple>

#include "planner/rank_speeds.h"
#include "run/model_layers.h"

namespace weft {
namespace {

// Sizes of a layer that decide how long its jobs take.
using LayerCost = std::tuple<double, int64_t, int64_t, bool>;

// Returns for each stage the number of its kind: stages of equal layers at the same end of the model are
// alike. The first stage computes no gradient of its input, and the last has the loss.
std::vector<int> KindsOfStages(const RunSpec& run) {
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  std::map<std::tuple<bool, bool, std::vector<LayerCost>>, int> numbers;
  std::vector<int> kinds;
  size_t next = 0;
  for (int s = 0; s < run.stages(); ++s) {
    std::vector<LayerCost> costs;
    for (int i = 0; i < run.layers_of_stage[s]; ++i) {
      const LayerCount& layer = layers[next++];
      costs.emplace_back(layer.forward_flops, layer.parameters, KeptTensorBytes({layer}, 0, 1, 1),
                         layer.reads_data);
    }
    const auto number = static_cast<int>(numbers.size());
    kinds.push_back(
        numbers.try_emplace({s == 0, s + 1 == run.stages(), std::move(costs)}, number).first->second);
  }
  return kinds;
}

// Returns the times by which ranks are compared. A kind of work is a kind of job on a kind of stage.
std::vector<TimedWork> ComparedTimes(const MeasuredJobs& jobs, const std::vector<int>& kind_of_stage,
                                     int first_rank) {
  std::vector<TimedWork> times;
  for (Rank r = 0; r < jobs.ranks(); ++r) {
    for (int k = 0; HasMicrobatch(static_cast<JobKind>(k)); ++k) {
      for (int s = 0; s < jobs.stages(); ++s) {
        const MeasuredJobs::Sum& sum = jobs.Of(r, static_cast<JobKind>(k), s);
        if (sum.count == 0) continue;
        const int work = k * jobs.stages() + kind_of_stage[s];
        times.push_back({first_rank + r, work, sum.mean(), static_cast<double>(sum.count)});
      }
    }
  }
  return times;
}

// Returns the mean cost of jobs that are not compared, at the ranks' speeds.
double MeanCost(const MeasuredJobs& jobs, const std::vector<double>& speeds, JobKind kind, int stage) {
  double cost = 0, count = 0;
  for (Rank r = 0; r < jobs.ranks(); ++r) {
    const MeasuredJobs::Sum& sum = jobs.Of(r, kind, stage);
    cost += sum.seconds * speeds[r];
    count += static_cast<double>(sum.count);
  }
  return count > 0 ? cost / count : 0;
}

}  // namespace

MeasuredJobs::MeasuredJobs(int ranks, int stages)
    : ranks_(ranks), stages_(stages), sums_(static_cast<size_t>(ranks) * kJobKinds * stages) {}

void MeasuredJobs::Add(Rank rank, const Job& job, double seconds) {
  if (rank < 0 || rank >= ranks_ || job.stage < 0 || job.stage >= stages_) return;
  Sum& sum = sums_[IndexOf(rank, job.kind, job.stage)];
  sum.seconds += seconds;
  ++sum.count;
}

void MeasuredJobs::Add(const MeasuredJobs& others) {
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].seconds += others.sums_[i].seconds;
    sums_[i].count += others.sums_[i].count;
  }
}

RankCosts CostsOfJobs(const RunSpec& run, const MeasuredJobs& jobs, const MeasuredJobs* before) {
  const int ranks = jobs.ranks(), stages = jobs.stages(), works = kJobKinds * stages;
  const std::vector<int> kind_of_stage = KindsOfStages(run);
  std::vector<TimedWork> times = ComparedTimes(jobs, kind_of_stage, 0);
  std::vector<double> known;
  if (before != nullptr) {
    const std::vector<TimedWork> earlier = ComparedTimes(*before, kind_of_stage, 0);
    const RankSpeeds speeds = FitRankSpeeds(earlier, ranks, works);
    known.assign(ranks, 0);
    known.insert(known.end(), speeds.speeds.begin(), speeds.speeds.end());
    const std::vector<TimedWork> as_others = ComparedTimes(*before, kind_of_stage, ranks);
    times.insert(times.end(), as_others.begin(), as_others.end());
  }
  RankSpeeds fit = FitRankSpeeds(times, before == nullptr ? ranks : 2 * ranks, works, known);
  ScaleToFastest(ranks, &fit);
  RankCosts measured;
  measured.speeds.assign(fit.speeds.begin(), fit.speeds.begin() + ranks);
  for (int k = 0; k < kJobKinds; ++k) {
    const auto kind = static_cast<JobKind>(k);
    for (int s = 0; s < stages; ++s) {
      measured.duration[k].push_back(HasMicrobatch(kind) ? fit.seconds[k * stages + kind_of_stage[s]]
                                                         : MeanCost(jobs, measured.speeds, kind, s));
    }
  }
  return measured;
}

}  // namespace weft
