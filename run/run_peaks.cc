#include "run/run_peaks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "run/inline_bytes.h"
#include "run/received_copies.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/graph/graph.h"
#include "schedules/sync/held_versions.h"

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The most bytes that are alive at a time.
class AliveBytes {
 public:
  // Order of events at one instant: an upper bound frees first, as one job of a rank follows another.
  enum class First { kFrees, kTakes };

  // Adds bytes that are alive from one time to another.
  void Add(double from, double to, int64_t bytes) {
    if (bytes == 0 || from > to) return;
    changes_.push_back({from, bytes});
    changes_.push_back({to, -bytes});
  }
  int64_t Peak(First first) {
    const auto order = [&](const Change& c) {
      return std::pair(c.time, (c.bytes > 0) == (first == First::kTakes) ? 0 : 1);
    };
    std::sort(changes_.begin(), changes_.end(),
              [&](const Change& a, const Change& b) { return order(a) < order(b); });
    int64_t alive = 0, most = 0;
    for (const Change& change : changes_) most = std::max(most, alive += change.bytes);
    return most;
  }

 private:
  struct Change {
    double time;
    int64_t bytes;
  };
  std::vector<Change> changes_;
};

// When a job ran; a job that is not among those given has neither time.
struct Ran {
  double start = kNever, end = -kNever;
  bool known() const { return start <= end; }
};

// A range of times, as of the instant at which something is freed.
struct Instant {
  double early, late;
};

class PeakCount {
 public:
  PeakCount(const RunSpec& run, const Graph& graph, const std::vector<SimulatedJob>& jobs,
            const std::optional<MemoryOfRank>& memory_of_rank);

  std::vector<PeakBytes> Count(const std::vector<SimulatedJob>& jobs);

 private:
  struct Range {
    AliveBytes least, most;
    // Adds bytes that a job takes before its end, and that are freed at some time of `freed`.
    void Add(const Ran& taken, Instant freed, int64_t bytes) {
      least.Add(taken.end, freed.early, bytes);
      most.Add(taken.start, freed.late, bytes);
    }
  };
  struct OfRank {
    Range activations, gradients, received;
    AliveBytes
        between;  // what first halves of backwards leave for the second, and gradients for the own rank
  };

  const Ran& At(const Job& job) const {
    static const Ran* const none = new Ran;
    const int step = job.step - first_step_;
    return step < 0 || step >= steps_ ? *none : ran_[step * graph_.jobs_per_step() + graph_.IndexOf(job)];
  }
  Ran AtPass(const Job& forward, JobKind kind) const {
    return At(Job::Compute(forward.step, forward.stage, forward.microbatch, kind));
  }
  ActivationPolicy PolicyOf(int stage) const {
    const std::vector<ActivationPolicy>& policies = graph_.terms().activations;
    return policies.empty() ? ActivationPolicy::kRetain : policies[stage];
  }
  double GivenBack(const Job& forward, int consumer, Rank reader, double time) const;
  Instant OutputFreed(const Job& forward) const;
  void AddForward(const Job& forward);
  void AddReturned(const Job& backward);
  double StepGivenBack(int step, int stage) const;
  void AddGradient(const Job& backward);
  void AddSums(int step, int stage);
  static void AddOwnSum(std::vector<std::pair<Ran, int>> passes, Instant freed, int64_t bytes,
                        Range* gradients);

  enum class Copies : uint8_t { kNone, kMaybe, kCertain };
  Copies IsCopied(Rank maker, Rank reader, int64_t bytes) const;
  Instant CopyFreed(const Edge& edge, const Ran& reader) const;
  void AddReceived(const Job& reader);

  std::vector<int64_t> CountVersions(std::vector<SimulatedJob> jobs) const;
  bool VersionsStay() const;
  int64_t MostGradients(Rank rank) const;

  const RunSpec& run_;
  const Graph& graph_;
  const std::vector<StageMemory> stages_;
  const RunMemory counted_;
  const std::optional<MemoryOfRank>& memory_of_rank_;
  int first_step_ = 0, steps_ = 0;
  std::vector<Ran> ran_;  // by step and index
  std::vector<OfRank> ranks_;
};

PeakCount::PeakCount(const RunSpec& run, const Graph& graph, const std::vector<SimulatedJob>& jobs,
                     const std::optional<MemoryOfRank>& memory_of_rank)
    : run_(run),
      graph_(graph),
      stages_(CountStages(run)),
      counted_(CountRun(run, graph.run_schedule())),
      memory_of_rank_(memory_of_rank),
      ranks_(graph.schedule().ranks) {
  if (jobs.empty()) return;
  const auto [first, last] = std::minmax_element(
      jobs.begin(), jobs.end(),
      [](const SimulatedJob& a, const SimulatedJob& b) { return a.job.step < b.job.step; });
  first_step_ = first->job.step;
  steps_ = last->job.step - first_step_ + 1;
  ran_.resize(static_cast<size_t>(steps_) * graph_.jobs_per_step());
  for (const SimulatedJob& j : jobs)
    ran_[static_cast<size_t>(j.job.step - first_step_) * graph_.jobs_per_step() + graph_.IndexOf(j.job)] = {
        j.start, j.end};
}

// Returns the latest time at which memory that `reader` gives back at `time` is back at `holder`. It comes
// with the first gradient of an input that the reader makes from then on and the holder takes: both are of
// the boundary between a stage and its consumer. If there is no such gradient, it comes while the next step
// runs.
double PeakCount::GivenBack(const Job& forward, int consumer, Rank reader, double time) const {
  const Rank holder = graph_.RankOf(forward);
  double known = StepGivenBack(forward.step, forward.stage);
  for (int t = forward.step; t < std::min(forward.step + 2, first_step_ + steps_); ++t) {
    for (int b = 0; b < graph_.schedule().microbatches; ++b) {
      const Job making = Job::Compute(t, consumer, b, graph_.input_backward());
      const Job taking = Job::Compute(t, forward.stage, b, graph_.input_backward());
      if (graph_.RankOf(making) != reader || graph_.RankOf(taking) != holder) continue;
      const Ran &made = At(making), &taken = At(taking);
      if (made.known() && made.end >= time) known = std::min(known, taken.start);
    }
  }
  return known;
}

// A consumer holds its input until its backward has ended; one that offloads, until it has moved it. A
// backward on another rank than its forward reads the input there. An output that another process gets as a
// copy is freed at once.
Instant PeakCount::OutputFreed(const Job& forward) const {
  const Rank holder = graph_.RankOf(forward);
  Instant freed{-kNever, -kNever};
  for (const int consumer : graph_.consumers(forward.stage)) {
    const Job at = Job::Compute(forward.step, consumer, forward.microbatch, JobKind::kForward);
    const bool moves = PolicyOf(consumer) == ActivationPolicy::kOffload && !graph_.HasRemoteBackward(at);
    const Job ends = moves ? at : Job::Compute(at.step, consumer, at.microbatch, graph_.final_backward());
    const Ran first = moves ? At(at) : AtPass(at, graph_.input_backward());
    const Ran last = At(ends);
    const Rank reader = graph_.RankOf(ends);
    const bool leaves = graph_.RankOf(at) != holder || reader != holder;
    freed.early = std::max(freed.early, leaves ? At(forward).end : first.known() ? first.start : kNever);
    double late = last.known() ? std::max(last.end, At(at).end) : kNever;
    if (last.known() && leaves) late = GivenBack(forward, consumer, reader, late);
    freed.late = std::max(freed.late, late);
  }
  return freed;
}

void PeakCount::AddForward(const Job& forward) {
  const Ran& ran = At(forward);
  if (!ran.known()) return;
  const StageMemory& stage = stages_[forward.stage];
  Range& alive = ranks_[graph_.RankOf(forward)].activations;
  const Ran first = AtPass(forward, graph_.input_backward()), last = AtPass(forward, graph_.final_backward());
  Instant output = OutputFreed(forward);
  const bool retains =
      PolicyOf(forward.stage) == ActivationPolicy::kRetain && !graph_.HasRemoteBackward(forward);
  if (retains) {
    // The first half of a split backward may free what the second does not read.
    const Instant own{first.start, last.known() ? last.end : kNever};
    output.late = std::max(output.late, own.late);
    alive.Add(ran, own, stage.activation_bytes - stage.output);
  }
  if (!graph_.consumers(forward.stage).empty()) alive.Add(ran, output, stage.output);
}

// Adds gradients of inputs that the rank makes for itself, until they have been taken. Without measured
// buffers, the work of jobs has room for them.
void PeakCount::AddReturned(const Job& backward) {
  const Ran& made = At(backward);
  if (!run_.buffers.has_value() || !made.known()) return;
  for (const int input : graph_.inputs(backward.stage)) {
    const Job taking = Job::Compute(backward.step, input, backward.microbatch, graph_.final_backward());
    if (graph_.RankOf(taking) != graph_.RankOf(backward)) continue;
    ranks_[graph_.RankOf(backward)].between.Add(made.end, At(taking).known() ? At(taking).end : kNever,
                                                stages_[input].output);
  }
}

// Returns when nothing of a step of a stage is on its way any more: others give back what they took while the
// next step runs, at the latest.
double PeakCount::StepGivenBack(int step, int stage) const {
  double late = -kNever;
  for (int m = 0; m < graph_.protocol(stage).size(); ++m) {
    const Ran& update = At(Job::Update(step + 1, stage, m));
    late = std::max(late, update.known() ? update.end : kNever);
  }
  return late;
}

// A gradient that leaves its job.
void PeakCount::AddGradient(const Job& backward) {
  const Ran& made = At(backward);
  if (!made.known()) return;
  ranks_[graph_.RankOf(backward)].gradients.Add(
      made, {made.end, StepGivenBack(backward.step, backward.stage)}, stages_[backward.stage].parameters);
}

// Adds the sums of a step's gradients, with the holders that sum.
void PeakCount::AddSums(int step, int stage) {
  const Protocol& protocol = graph_.protocol(stage);
  if (protocol.passes_sums()) return;
  Ran all;
  std::vector<std::pair<Ran, int>> passes;  // with their micro-batches
  for (int b = 0; b < graph_.schedule().microbatches; ++b) {
    const Ran& pass = At(Job::Compute(step, stage, b, graph_.final_backward()));
    if (!pass.known()) continue;
    passes.emplace_back(pass, b);
    all = {std::min(all.start, pass.start), std::max(all.end, pass.end)};
  }
  if (passes.empty()) return;
  for (int m = 0; m < protocol.size(); ++m) {
    const Ran& update = At(Job::Update(step, stage, m));
    const double begins = update.known() ? update.start : kNever;
    Range& gradients = ranks_[protocol.holder(m).rank].gradients;
    if (protocol.gradients_leave()) {
      gradients.Add(all, {begins, StepGivenBack(step, stage)},
                    SumBytes(stages_[stage], protocol.KeptBy(graph_, m), m));
    } else {
      AddOwnSum(passes, {begins, update.known() ? update.end : kNever}, stages_[stage].parameters,
                &gradients);
    }
  }
}

// Adds the sum of a rank that alone computes all backwards of a stage, and what comes before its turn.
void PeakCount::AddOwnSum(std::vector<std::pair<Ran, int>> passes, Instant freed, int64_t bytes,
                          Range* gradients) {
  std::sort(passes.begin(), passes.end(),
            [](const auto& a, const auto& b) { return a.first.start < b.first.start; });
  gradients->Add(passes.front().first, freed, bytes);
  std::map<int, Ran> waiting;
  int next = passes.front().second;
  for (const auto& [pass, microbatch] : passes) next = std::min(next, microbatch);
  // The first that comes makes the sum's buffer, whether it is its turn or not.
  for (const auto& [pass, microbatch] : passes) {
    if (microbatch != next) {
      waiting.emplace(microbatch, pass);
      continue;
    }
    for (++next; !waiting.empty() && waiting.begin()->first == next; ++next) {
      gradients->Add(waiting.begin()->second, {pass.start, pass.end}, bytes);
      waiting.erase(waiting.begin());
    }
  }
}

// Returns whether the reader gets a copy. A small tensor is one between any two processes.
PeakCount::Copies PeakCount::IsCopied(Rank maker, Rank reader, int64_t bytes) const {
  if (maker == reader || bytes == 0) return Copies::kNone;
  if (memory_of_rank_.has_value() && (*memory_of_rank_)[maker] != (*memory_of_rank_)[reader])
    return Copies::kCertain;
  const bool unknown = !memory_of_rank_.has_value() && run_.separate_memory;
  return unknown || bytes <= kInlineBytes ? Copies::kMaybe : Copies::kNone;
}

// Returns when the copy that travelled along the edge is freed: with the job that reads it; one that its
// micro-batch needs to the end, with the last of its backward; and a sum that a reduce passes on, when nobody
// takes it any more.
Instant PeakCount::CopyFreed(const Edge& edge, const Ran& reader) const {
  const Job& job = edge.to;
  Instant freed{reader.start, reader.end};
  const auto last_of = [&](JobKind kind) {
    const Ran& ran = At(Job::Compute(job.step, job.stage, job.microbatch, kind));
    return ran.known() ? std::max(ran.end, reader.end) : kNever;
  };
  if (edge.tensor == TensorKind::kInputGradient) {
    freed.late = last_of(graph_.final_backward());
  } else if (edge.tensor == TensorKind::kActivation) {
    const bool leaves = job.kind == JobKind::kForward && graph_.HasRemoteBackward(job);
    if (leaves) return freed;
    const bool moves = PolicyOf(job.stage) == ActivationPolicy::kOffload;
    if (moves && job.kind == JobKind::kForward) return freed;
    freed.late = last_of(graph_.final_backward());
    const Ran first = AtPass(job, graph_.input_backward());
    if (job.kind == JobKind::kForward) freed.early = first.known() ? first.start : kNever;
  } else if (edge.tensor == TensorKind::kWeights && graph_.KeepsFetched(job)) {
    for (int b = 0; b < graph_.schedule().microbatches; ++b) {
      const Job other = Job::Compute(job.step, job.stage, b, job.kind);
      if (graph_.FetchedBy(other) == job) freed.late = std::max(freed.late, At(other).end);
    }
  } else if (edge.tensor == TensorKind::kGradientSum && job.kind == JobKind::kReduce) {
    freed.late = std::max(freed.late, StepGivenBack(job.step, job.stage));
  }
  return freed;
}

// Adds the copies that come for a job. One may be there as soon as it has been made.
void PeakCount::AddReceived(const Job& reader) {
  const Ran& ran = At(reader);
  if (!ran.known()) return;
  const Rank rank = graph_.RankOf(reader);
  Edges edges;
  graph_.Predecessors(reader, &edges);
  for (const Edge& e : edges) {
    // A run that goes on from a checkpoint begins with weights, and with nothing of the steps before it.
    const Ran& made = At(e.from);
    const bool before_run = !made.known() && e.from.step < run_.first_step();
    if (e.joined || (before_run && e.tensor != TensorKind::kWeights)) continue;
    const int64_t bytes = CopyBytes(graph_, e, run_, stages_);
    const Copies copies = IsCopied(graph_.RankOf(e.from), rank, bytes);
    if (copies == Copies::kNone) continue;
    const Instant freed = CopyFreed(e, ran);
    Range& received = ranks_[rank].received;
    received.most.Add(made.known() ? made.end : -kNever, freed.late, bytes);
    // A job that sums starts before all that it takes is there.
    if (copies == Copies::kCertain && HasMicrobatch(reader.kind))
      received.least.Add(ran.start, freed.early, bytes);
  }
}

// Returns, by rank, the most bytes of the versions that are kept while the jobs run. A rank's jobs follow one
// another, so an update begins when the job before it has ended.
std::vector<int64_t> PeakCount::CountVersions(std::vector<SimulatedJob> jobs) const {
  std::sort(jobs.begin(), jobs.end(), [](const SimulatedJob& a, const SimulatedJob& b) {
    return std::pair(a.end, a.start) < std::pair(b.end, b.start);
  });
  HeldVersions versions(graph_, HeldVersions::Steps{run_.train.steps, 0, /*saved=*/true});
  std::vector<int64_t> held(ranks_.size(), 0);
  const auto add = [&](int stage, int member, int times) {
    const StageMemory& bytes = stages_[stage];
    held[graph_.members(stage)[member]] +=
        times * versions.Held(stage, member) * (bytes.parameters + bytes.narrowed);
  };
  for (int stage = 0; stage < graph_.schedule().stages; ++stage) {
    for (int m = 0; m < graph_.protocol(stage).size(); ++m) add(stage, m, 1);
  }
  std::vector<int64_t> peaks = held;
  for (const SimulatedJob& j : jobs) {
    if (j.job.kind == JobKind::kReduce) continue;
    const bool updates = j.job.kind == JobKind::kUpdate;
    const int member = updates ? j.job.member : graph_.SourceOf(j.job);
    add(j.job.stage, member, -1);
    if (updates) {
      const StageMemory& bytes = stages_[j.job.stage];
      const int64_t beside = versions.KeepsVersion(j.job) ? bytes.parameters + bytes.narrowed : 0;
      const int64_t during =
          versions.Held(j.job.stage, member) * (bytes.parameters + bytes.narrowed) + beside;
      peaks[j.rank] = std::max(peaks[j.rank], held[j.rank] + during);
      versions.Publish(j.job, nullptr);
    } else {
      versions.Read(j.job, nullptr);
    }
    add(j.job.stage, member, 1);
    peaks[j.rank] = std::max(peaks[j.rank], held[j.rank]);
  }
  return peaks;
}

// Returns true if no versions of a stage are on their way between ranks, and all are in these jobs.
bool PeakCount::VersionsStay() const {
  if (first_step_ != 0 || graph_.route() != nullptr) return false;
  for (int stage = 0; stage < graph_.schedule().stages; ++stage) {
    const Protocol& protocol = graph_.protocol(stage);
    if (protocol.layout() != Layout::kWhole || protocol.passes_sums()) return false;
    for (int m = 0; m < protocol.size(); ++m) {
      if (protocol.KeptBy(graph_, m).leaving > 0) return false;
    }
  }
  return true;
}

// Returns the most bytes of a rank's gradients for which its budget has room: those that leave it have that
// of forwards.
int64_t PeakCount::MostGradients(Rank rank) const {
  const std::optional<ActivationMemory>& memory = graph_.terms().memory;
  if (!memory.has_value()) return std::numeric_limits<int64_t>::max();
  const RankMemory& counted = counted_.ranks[rank];
  return counted.gradients - counted.handed_out - counted.passed + memory->budget[rank];
}

std::vector<PeakBytes> PeakCount::Count(const std::vector<SimulatedJob>& jobs) {
  const Schedule& schedule = graph_.schedule();
  const bool sums_are_counted = graph_.route() == nullptr && !graph_.joint_order().any();
  for (int step = first_step_; step < first_step_ + steps_; ++step) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      for (int b = 0; b < schedule.microbatches; ++b) {
        const Job forward = Job::Compute(step, stage, b, JobKind::kForward);
        const Job backward = Job::Compute(step, stage, b, graph_.final_backward());
        AddForward(forward);
        AddReturned(Job::Compute(step, stage, b, graph_.input_backward()));
        if (graph_.protocol(stage).gradients_leave() || graph_.protocol(stage).passes_sums())
          AddGradient(backward);
        if (!schedule.split_backward) continue;
        const Ran first = AtPass(forward, JobKind::kBackwardInput);
        if (first.known())
          ranks_[graph_.RankOf(backward)].between.Add(
              first.start, At(backward).known() ? At(backward).end : kNever, stages_[stage].between_buffers);
      }
      AddSums(step, stage);
    }
    for (int i = 0; i < graph_.jobs_per_step(); ++i) AddReceived(graph_.JobAt(step, i));
  }
  const std::vector<int64_t> versions = VersionsStay() ? CountVersions(jobs) : std::vector<int64_t>();
  std::vector<PeakBytes> peaks;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    OfRank& rank = ranks_[r];
    const RankMemory& counted = counted_.ranks[r];
    // A state that leaves, or has come, is one tensor until it has been taken apart: of the buffers.
    const int64_t states = graph_.route() == nullptr ? 0 : counted.held();
    using First = AliveBytes::First;
    const ClassBytes least{counted.certain_weights,
                           sums_are_counted ? rank.gradients.least.Peak(First::kTakes) : 0,
                           graph_.route() == nullptr ? counted.optimizer : 0,
                           rank.activations.least.Peak(First::kTakes),
                           0,
                           rank.received.least.Peak(First::kTakes)};
    const int64_t gradients = sums_are_counted ? rank.gradients.most.Peak(First::kFrees) : counted.gradients;
    const ClassBytes most{counted.weights - (graph_.terms().memory.has_value() ? counted.leaving : 0),
                          std::min(gradients, MostGradients(static_cast<Rank>(r))),
                          counted.optimizer,
                          rank.activations.most.Peak(First::kFrees),
                          counted.buffers + counted.waiting + states + rank.between.Peak(First::kFrees),
                          rank.received.most.Peak(First::kFrees)};
    peaks.push_back({least, most});
    if (!versions.empty()) {
      peaks.back().least.weights = peaks.back().most.weights = versions[r] + counted.constants;
    }
  }
  return peaks;
}

}  // namespace

std::vector<PeakBytes> CountPeaks(const RunSpec& run, const RunSchedule& schedule,
                                  std::vector<SimulatedJob> jobs,
                                  const std::optional<MemoryOfRank>& memory_of_rank) {
  // A trace names the ranks of reduces and updates alone.
  const Graph graph(schedule);
  for (SimulatedJob& j : jobs) {
    if (HasMicrobatch(j.job.kind)) continue;
    const std::vector<Rank>& ranks = graph.members(j.job.stage);
    j.job.member = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), j.rank) - ranks.begin());
  }
  return PeakCount(run, graph, jobs, memory_of_rank).Count(jobs);
}

}  // namespace weft
