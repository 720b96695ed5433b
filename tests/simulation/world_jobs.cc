// The simulated world: what jobs compute, and when.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world_run.h"

namespace weft {

bool World::GoesWrong(Process& p, const StartEffect& start) {
  const BadJob& bad = options_.bad_job;
  if (bad.kind == BadJob::Kind::kNone || start.job != bad.job || bad_starts_ >= bad.times) return false;
  ++bad_starts_;
  if (bad.kind == BadJob::Kind::kDeadly) {
    Kill(p);
    return true;
  }
  // The job ends as any other, and nothing comes of it.
  WorkerEffects effects;
  p.core.OnFailure(now_, Failed{0, absl::StrCat(Describe(bad.job), " is nan"), -1, -1, bad.job.step},
                   &effects);
  Carry(p, std::move(effects), nullptr);
  Pump(p);
  return false;
}

void World::StartJob(Process& p, const StartEffect& start) {
  CheckStart(start);
  if (GoesWrong(p, start)) return;
  if (start.has_state) ReceiveState(p, start);
  CountActivationBytes(start, /*ended=*/false);
  if (!start.overlapped) {
    Device& device = devices_[start.rank];
    device.behind = device.all;
    device.overlapped = 0;
  }
  Note(Mix(15, start.job.stage * 100 + start.job.microbatch));
  if (LaunchesAhead()) {
    AtOf(p, now_ + 1 + random_.Below(options_.job_ns / 4), [this, &p, start] { LaunchJob(p, start); });
    return;
  }
  const int64_t began = began_[start.job] = now_;
  AtOf(p, now_ + 1 + options_.least_job_ns + random_.Below(options_.job_ns), [this, &p, start, began] {
    Lags(p) ? EndLaggingJob(p, start) : EndJob(p, start, began, Compute(p, start));
  });
}

World::Outputs World::Compute(Process& p, const StartEffect& start) {
  const Job& j = start.job;
  const auto take_all = [&](TensorKind kind) {
    std::vector<Value> values;
    for (const TensorKey& key : start.inputs) {
      if (key.kind != kind) continue;
      const auto it = p.inbox.find(key);
      if (it == p.inbox.end()) {
        Problem(absl::StrCat(Describe(j), " lacks the ", Describe(key)));
        continue;
      }
      values.push_back(it->second);
      p.inbox.erase(it);
      p.untaken.erase(key);
    }
    return values;
  };
  const auto take = [&](TensorKind kind) -> std::optional<Value> {
    const std::vector<Value> values = take_all(kind);
    return values.empty() ? std::nullopt : std::optional<Value>(values[0]);
  };
  Outputs out;
  Job forward = j;
  forward.kind = JobKind::kForward;
  const auto weights = [&] {
    if (!start.Does(Operation::kGatherWeights)) {
      const std::optional<Value> came = take(TensorKind::kWeights);
      if (start.Does(Operation::kKeepWeights)) out.kept_weights = came;
      return came.has_value() ? *came : HeldWeights(p, start.rank, j.stage, start.version);
    }
    std::vector<Value> slices(SlicesOf(plan_->graph, j.stage));
    const auto& members = plan_->graph.members(j.stage);
    const auto own = std::find(members.begin(), members.end(), start.rank);
    if (own != members.end())
      slices[own - members.begin()] = HeldWeights(p, start.rank, j.stage, start.version);
    for (const TensorKey& key : start.inputs) {
      const auto it = p.inbox.find(key);
      if (key.kind == TensorKind::kWeights && it != p.inbox.end()) slices[key.part] = it->second;
    }
    if (take_all(TensorKind::kWeights).size() + 1 != slices.size())
      Problem(absl::StrCat(Describe(j), " has not all others' slices of the weights"));
    return WholeWeights(slices);
  };
  const bool runs_again = start.Does(Operation::kRemakeForward);
  const bool adds_to_sum = start.Does(Operation::kAddToSum);
  const bool hands_out = adds_to_sum || start.Does(Operation::kHandOutGradient);
  std::optional<Value> fetched;  // a job's weights come once
  if (runs_again) {
    fetched = weights();
    p.outputs[{start.rank, forward}] =
        ForwardValue(forward, Joined(take_all(TensorKind::kActivation), j.step), *fetched);
  }
  if (j.kind == JobKind::kForward) {
    const Value input = Joined(take_all(TensorKind::kActivation), j.step);
    out.activation = ForwardValue(j, input, weights());
    if (!start.Does(Operation::kForwardOnly)) p.outputs[{start.rank, j}] = out.activation;
  } else if (j.kind == JobKind::kBackwardWeight) {
    // The job reads what its backward_input left; it fetches weights anew where they are not held.
    weights();
    Job input = j;
    input.kind = JobKind::kBackwardInput;
    out.gradient = p.outputs[{start.rank, input}];
    p.outputs.erase({start.rank, input});
    if (!hands_out) p.outputs[{start.rank, j}] = out.gradient;
  } else if (j.kind == JobKind::kBackwardInput) {
    const Value gradient = Joined(take_all(TensorKind::kInputGradient), 0);
    out.input_gradient = InputGradientValue(j, p.outputs[{start.rank, forward}], gradient,
                                            fetched.has_value() ? *fetched : weights());
    p.outputs[{start.rank, j}] = GradientValue(out.input_gradient);
    p.outputs.erase({start.rank, forward});
  } else if (HasMicrobatch(j.kind)) {
    const Value gradient = Joined(take_all(TensorKind::kInputGradient), 0);
    out.input_gradient = InputGradientValue(j, p.outputs[{start.rank, forward}], gradient,
                                            fetched.has_value() ? *fetched : weights());
    out.gradient = GradientValue(out.input_gradient);
    p.outputs.erase({start.rank, forward});
    // A stage of one holder sums in the rank itself, micro-batch by micro-batch: by number, so that order
    // does not matter here.
    if (start.has_state) {
      AddToState(p, start, out.gradient);
    } else if (!hands_out) {
      p.outputs[{start.rank, Job::Compute(j.step, j.stage, j.microbatch, JobKind::kBackwardWeight)}] =
          out.gradient;
    }
  } else {
    for (const TensorKey& key : start.gradients) {
      p.sums[j] = Mix(p.sums[j], p.inbox[key]);
      p.inbox.erase(key);
      p.untaken.erase(key);
    }
    if (!start.last()) return out;
    const std::optional<Value> installed = take(TensorKind::kWeights);
    const bool makes = plan_->graph.protocol(j.stage).holder(j.member).steps;
    const bool installs = start.Does(Operation::kInstallWeights);
    if (makes ? installed.has_value() : installs && !installed.has_value())
      Problem(absl::StrCat(Describe(j), " is not by its home alone"));
    const std::vector<Value> norms = take_all(TensorKind::kNorm);
    // The sums come from other jobs, as parts or as a running sum.
    std::vector<Value> sums = take_all(TensorKind::kGradientSum);
    if (!sums.empty() || !makes) {
      if (!plan_->graph.protocol(j.stage).has_reduce() && !plan_->graph.protocol(j.stage).passes_sums())
        Problem(absl::StrCat(Describe(j), " has the sums of others"));
    } else if (start.has_state) {
      sums.push_back(TakeStateSum(p, start));
    } else if (plan_->graph.protocol(j.stage).gradients_leave()) {
      sums.push_back(p.sums[j]);
    } else {
      sums.push_back(0);
      for (int b = 0; b < plan_->graph.schedule().microbatches; ++b) {
        const auto it =
            p.outputs.find({start.rank, Job::Compute(j.step, j.stage, b, JobKind::kBackwardWeight)});
        if (it == p.outputs.end()) {
          Problem(absl::StrCat(Describe(j), " lacks the gradient of micro-batch ", b));
          break;
        }
        sums[0] = Mix(sums[0], it->second);
        p.outputs.erase(it);
      }
    }
    const bool clips = start.Does(Operation::kSumSquares) || start.Does(Operation::kClippedStep);
    if (clips != (plan_->graph.terms().takes_norm && makes))
      Problem(absl::StrCat(Describe(j), clips ? " clips" : " does not clip"));
    if (j.kind == JobKind::kReduce) {
      out.sum = sums[0];
      out.norm = NormValue(sums[0]);
      for (const Value norm : norms) out.norm += norm;
    } else {
      if (norms.size() != (clips ? 1 : 0))
        Problem(absl::StrCat(Describe(j), " has ", norms.size(), " norms"));
      sums.insert(sums.end(), norms.begin(), norms.end());
      UpdateWeights(p, start, installed, sums);
      if (start.leaves.snapshot) TakeSnapshot(p, start);
      if (start.leaves.copy) TakeCopy(p, start);
    }
  }
  if (adds_to_sum) out.sum = Mix(take(TensorKind::kGradientSum).value_or(0), out.gradient);
  return out;
}

// A job of an attempt that is over for others: it takes its time, and nothing of it is kept.
void World::StartLaggingJob(Process& p, const StartEffect& start) {
  AtOf(p, now_ + 1 + random_.Below(options_.job_ns), [this, &p, start] { EndLaggingJob(p, start); });
}

void World::EndLaggingJob(Process& p, const StartEffect& start) {
  WorkerEffects effects;
  JobDone done{start.rank, start.job, now_, now_, start.last(), {}, {}};
  done.launched = LaunchesAhead();
  if (done.launched) p.core.OnJobLaunched(now_, start.rank, start.job, start.last(), std::nullopt, &effects);
  p.core.OnJobDone(now_, done, &effects);
  Carry(p, std::move(effects), nullptr);
  Pump(p);
}

void World::EndJob(Process& p, const StartEffect& start, int64_t began, Outputs outputs) {
  if (start.last()) ended_.insert(start.job);
  if (start.has_state) PassStateOn(p, start, &outputs);
  std::vector<Job>& running = running_[start.rank];
  running.erase(std::find(running.begin(), running.end(), start.job));
  WorkerEffects effects;
  JobDone done{start.rank, start.job, began, now_, start.last(), {}, {}};
  const RunTerms& terms = plan_->graph.terms();
  if (start.job.kind == JobKind::kForward && terms.memory.has_value())
    done.activation_bytes = MeasuredActivationBytes(terms, start.job.stage);
  CountActivationBytes(start, /*ended=*/true);
  FollowGradient(p, start, &outputs);
  fetching_[start.rank].erase(start.job);
  p.core.OnJobDone(now_, done, &effects);
  Carry(p, std::move(effects), &outputs);
  Pump(p);
}

// The rank's thread gives the job to the device: what is computed with is what is there now, by its name; the
// times are those of the device.
void World::LaunchJob(Process& p, const StartEffect& start) {
  if (Lags(p)) return EndLaggingJob(p, start);
  Outputs outputs;
  const int64_t began = GiveToDevice(p, start, &outputs);
  const int64_t end = outputs.there;
  if (start.last()) launched_.insert(start.job);
  if (start.has_state) PassStateOn(p, start, &outputs);
  std::vector<Job>& running = running_[start.rank];
  running.erase(std::find(running.begin(), running.end(), start.job));
  CountActivationBytes(start, /*ended=*/true);
  FollowGradient(p, start, &outputs);
  std::optional<int64_t> activation_bytes;
  const RunTerms& terms = plan_->graph.terms();
  if (start.job.kind == JobKind::kForward && terms.memory.has_value())
    activation_bytes = MeasuredActivationBytes(terms, start.job.stage);
  WorkerEffects effects;
  p.core.OnJobLaunched(now_, start.rank, start.job, start.last(), activation_bytes, &effects);
  // Ends are reported in the order in which the device does the jobs, and a little later.
  int64_t& reported = devices_[start.rank].reported[start.overlapped];
  reported = std::max(reported, end + random_.Below(50'000)) + 1;
  AtOf(p, reported, [this, &p, start, began, end] { LaunchedJobEnds(p, start, began, end); });
  Carry(p, std::move(effects), &outputs);
  Pump(p);
}

int64_t World::GiveToDevice(Process& p, const StartEffect& start, Outputs* outputs) {
  Device& device = devices_[start.rank];
  int64_t began = std::max(now_, device.behind);
  if (start.overlapped) began = std::max(began, device.overlapped);
  for (const std::vector<TensorKey>* keys : {&start.inputs, &start.gradients}) {
    for (const TensorKey& key : *keys) {
      const auto there = p.there.find(key);
      if (there == p.there.end()) continue;
      began = std::max(began, there->second);
      p.there.erase(there);
    }
  }
  CheckDeviceOrder(start, began);
  *outputs = Compute(p, start);
  outputs->there = began + 1 + random_.Below(options_.job_ns);
  device.all = std::max(device.all, outputs->there);
  if (start.overlapped) device.overlapped = outputs->there;
  if (start.last()) device_end_[start.job] = outputs->there;
  return began;
}

void World::LaunchedJobEnds(Process& p, const StartEffect& start, int64_t began, int64_t ended) {
  if (!Lags(p)) {
    if (start.last()) ended_.insert(start.job);
    std::vector<StartEffect>& jobs = devices_[start.rank].jobs;
    jobs.erase(std::find_if(jobs.begin(), jobs.end(), [&](const StartEffect& job) {
      return job.job == start.job && job.last() == start.last();
    }));
    fetching_[start.rank].erase(start.job);
  }
  WorkerEffects effects;
  JobDone done{start.rank, start.job, began, ended, start.last(), {}, {}};
  done.launched = true;
  p.core.OnJobDone(now_, done, &effects);
  Carry(p, std::move(effects), nullptr);
  Pump(p);
}

}  // namespace weft
