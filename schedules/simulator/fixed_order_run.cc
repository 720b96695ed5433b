#include "schedules/simulator/fixed_order_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "schedules/simulator/links.h"
#include "schedules/simulator/simulation_summary.h"
#include "schedules/simulator/transfer_totals.h"

namespace weft {
namespace {

bool IsWhole(double value) { return value == std::floor(value); }

}  // namespace

bool FixedOrderRun::MayFit(const Graph& graph, const SimulationOptions& options) {
  const Schedule& s = graph.schedule();
  const bool ordered = graph.replays() && s.period == 1 && static_cast<int>(s.order.size()) == s.ranks;
  const bool free = !s.limit && !graph.terms().memory.has_value() && options.memory <= 0;
  const bool instant = options.latency == 0 && options.bandwidth <= 0 && options.network.IsPlain();
  const bool recorded = options.record_jobs || options.record_waits;
  return ordered && free && instant && !recorded && !graph.has_pairs() && !graph.depends_on_steps() &&
         !graph.joint_order().any() && !s.staleness;
}

FixedOrderRun::FixedOrderRun(const Graph& graph, const SimulationOptions& options,
                             const std::vector<double>& held_bytes, std::shared_ptr<const StepTables> tables)
    : graph_(graph),
      options_(options),
      costs_(graph, options),
      tables_(TablesOf(graph, std::move(tables))),
      numbers_(tables_->jobs),
      jobs_(graph, costs_, options, tables_->edges, numbers_),
      table_(jobs_.At(0)),
      result_(EmptyResult(graph, options, held_bytes)) {
  fits_ = ActivationsAreWhole() && TransferTotalsAreExact(graph, jobs_, options.steps) && LineUp();
  if (!fits_) return;
  CountStatics();
  CountTransfers(jobs_, options.steps, &result_);
  CountFetches();
}

// Whole numbers give the same sum in every order of adding.
bool FixedOrderRun::ActivationsAreWhole() const {
  double sum = 0;
  bool whole = true;
  for (const SimulatedJobs::Facts& facts : table_.jobs) {
    whole &= IsWhole(facts.activation);
    sum += facts.activation;
  }
  return whole && sum * options_.steps < kMaxExactInteger;
}

// Puts the update right behind the last of its step's gradients, at whose end it can start. Returns false if
// another rank makes one of the gradients.
bool FixedOrderRun::PlaceUpdate(int32_t update, std::vector<std::vector<int32_t>>* lines,
                                std::vector<int32_t>* place) const {
  int32_t last = -1;
  for (const Predecessor& p : predecessors_[update]) {
    if (!p.same_rank) return false;
    if (p.distance > 0) continue;
    if (!HasMicrobatch(table_.jobs[p.index].kind) || (*place)[p.index] < 0) return false;
    if (last < 0 || (*place)[p.index] > (*place)[last]) last = p.index;
  }
  if (last < 0) return false;
  std::vector<int32_t>& line = (*lines)[table_.jobs[update].rank];
  const auto behind = std::find(line.begin(), line.end(), last);
  line.insert(behind + 1, update);
  return true;
}

// Puts the jobs of a step on a line for each rank. False if something else than the orders has a say.
bool FixedOrderRun::LineUp() {
  const int n = numbers_.size();
  predecessors_.resize(n);
  for (int32_t i = 0; i < n; ++i) {
    const SimulatedJobs::Facts& facts = table_.jobs[i];
    if (HasMicrobatch(facts.kind) && !(facts.duration > 0)) return false;
    for (int32_t o = facts.first_output; o < table_.jobs[i + 1].first_output; ++o) {
      const SimulatedJobs::Output& output = table_.outputs[o];
      if (output.distance < 0) return false;
      predecessors_[output.index].push_back({i, output.distance, facts.rank == output.target});
    }
  }
  std::vector<std::vector<int32_t>> lines(graph_.schedule().ranks);
  std::vector<int32_t> place(n, -1);
  for (Rank rank = 0; rank < graph_.schedule().ranks; ++rank) {
    for (const Job& job : graph_.schedule().order[rank]) {
      const int32_t index = graph_.IndexOf(job);
      if (place[index] >= 0 || table_.jobs[index].rank != rank) return false;
      place[index] = static_cast<int32_t>(lines[rank].size());
      lines[rank].push_back(index);
    }
  }
  for (int32_t i = 0; i < n; ++i) {
    if (HasMicrobatch(table_.jobs[i].kind)) {
      if (place[i] < 0) return false;
    } else if (table_.jobs[i].kind != JobKind::kUpdate || !PlaceUpdate(i, &lines, &place)) {
      return false;
    }
  }
  return Order(lines);
}

// Sorts the jobs by Kahn's algorithm over the lines and the inputs from other ranks.
bool FixedOrderRun::Order(const std::vector<std::vector<int32_t>>& lines) {
  const int n = numbers_.size();
  std::vector<int32_t> missing(n, 0), behind(n, -1), entry_of(n, -1), ready;
  std::vector<bool> placed(n, false);
  for (const std::vector<int32_t>& line : lines) {
    for (size_t i = 1; i < line.size(); ++i) {
      behind[line[i - 1]] = line[i];
      ++missing[line[i]];
    }
  }
  for (int32_t i = 0; i < n; ++i) {
    for (const Predecessor& p : predecessors_[i]) missing[i] += p.distance == 0;
  }
  for (int32_t i = 0; i < n; ++i) {
    if (missing[i] == 0) ready.push_back(i);
  }
  for (size_t next = 0; next < ready.size(); ++next) {
    const int32_t i = ready[next];
    const SimulatedJobs::Facts& facts = table_.jobs[i];
    entry_of[i] = static_cast<int32_t>(next);
    for (int32_t o = facts.first_output; o < table_.jobs[i + 1].first_output; ++o) {
      const SimulatedJobs::Output& output = table_.outputs[o];
      if (output.distance == 0 && --missing[output.index] == 0) ready.push_back(output.index);
    }
    if (behind[i] >= 0 && --missing[behind[i]] == 0) ready.push_back(behind[i]);
  }
  if (static_cast<int>(ready.size()) < n) return false;
  for (const int32_t i : ready) {
    const SimulatedJobs::Facts& facts = table_.jobs[i];
    entries_.push_back({facts.duration, facts.rank, static_cast<int32_t>(inputs_.size()),
                        (facts.flags & SimulatedJobs::kBeginsActivation) != 0,
                        (facts.flags & SimulatedJobs::kEndsActivation) != 0, facts.kind == JobKind::kUpdate,
                        facts.activation});
    for (const Predecessor& p : predecessors_[i]) {
      if (p.same_rank) continue;
      inputs_.push_back({entry_of[p.index], p.distance});
      longest_ = std::max(longest_, p.distance);
    }
  }
  entries_.push_back({0, 0, static_cast<int32_t>(inputs_.size()), false, false, false, 0});
  return true;
}

// Counts what the orders alone say: every step is alike, and leaves no activation.
void FixedOrderRun::CountStatics() {
  std::vector<int> alive(result_.ranks.size(), 0);
  std::vector<double> bytes(result_.ranks.size(), 0);
  for (int i = 0; i + 1 < static_cast<int>(entries_.size()); ++i) {
    const Entry& e = entries_[i];
    RankStats& stats = result_.ranks[e.rank];
    if (e.begins) {
      stats.peak_activations = std::max(stats.peak_activations, ++alive[e.rank]);
      stats.peak_activation_bytes = std::max(stats.peak_activation_bytes, bytes[e.rank] += e.activation);
    }
    if (e.ends) {
      --alive[e.rank];
      bytes[e.rank] -= e.activation;
    }
  }
  for (const RankStats& stats : result_.ranks) {
    most_alive_ += stats.peak_activations;
    most_bytes_ += stats.peak_activation_bytes;
  }
  changes_.resize(result_.ranks.size());
}

// Jobs of the first step read the initial weights.
void FixedOrderRun::CountFetches() {
  Edges edges;
  for (int i = 0; i < numbers_.size(); ++i) {
    const SimulatedJobs::Facts& facts = table_.jobs[i];
    if (!(facts.flags & SimulatedJobs::kFetches)) continue;
    result_.ranks[facts.rank].weight_fetches += options_.steps;
    edges.clear();
    graph_.Predecessors(numbers_.First(i), &edges);
    const OperationCharge charge = ChargeOf(graph_, numbers_.First(i));
    const double bytes = costs_.BytesOf(TensorKind::kWeights, charge, charge);
    for (const Edge& e : edges) {
      const Rank holder = graph_.RankOf(e.from);
      if (e.from.step < 0 && e.tensor == TensorKind::kWeights && holder != facts.rank)
        CountTransfer(holder, facts.rank, e.tensor, bytes, 1, &result_);
    }
  }
}

// Counts the changes before this time over all ranks; those of an instant together, ends first.
void FixedOrderRun::CountAlive(double until) {
  sorted_.clear();
  for (std::vector<Change>& changes : changes_) {
    const auto end = std::lower_bound(changes.begin(), changes.end(), until,
                                      [](const Change& c, double time) { return c.time < time; });
    merged_.clear();
    std::merge(sorted_.begin(), sorted_.end(), changes.begin(), end, std::back_inserter(merged_));
    sorted_.swap(merged_);
    changes.erase(changes.begin(), end);
  }
  for (const Change& change : sorted_) {
    alive_ += change.ends ? -1 : 1;
    alive_bytes_ += change.bytes;
    result_.peak_live_activations = std::max(result_.peak_live_activations, alive_);
    result_.peak_live_bytes = std::max(result_.peak_live_bytes, alive_bytes_);
  }
}

SimulationResult FixedOrderRun::Run() {
  const size_t jobs = entries_.size() - 1;
  std::vector<std::vector<double>> ends(longest_ + 1, std::vector<double>(jobs, 0));
  std::vector<double> time(result_.ranks.size(), 0), busy = time, idle = time;
  std::vector<const double*> ended(longest_ + 1);  // of so many steps before
  bool counts_alive = true;
  for (int step = 0; step < options_.steps; ++step) {
    for (int d = 0; d <= longest_; ++d) ended[d] = ends[(step + longest_ + 1 - d) % (longest_ + 1)].data();
    double* const end_of = ends[step % (longest_ + 1)].data();
    double step_end = 0;
    for (size_t i = 0; i < jobs; ++i) {
      const Entry& e = entries_[i];
      const double before = time[e.rank];
      double start = before;
      for (int32_t in = e.first_input; in < entries_[i + 1].first_input; ++in)
        start = std::max(start, ended[inputs_[in].distance][inputs_[in].entry]);
      const double end = start + e.duration;
      idle[e.rank] += start - before;
      busy[e.rank] += end - start;
      time[e.rank] = end_of[i] = end;
      if (e.update) step_end = std::max(step_end, end);
      if (!counts_alive) continue;
      if (e.begins) changes_[e.rank].push_back({start, e.activation, false});
      if (e.ends) changes_[e.rank].push_back({end, -e.activation, true});
    }
    result_.step_end[step] = step_end;
    if (!counts_alive) continue;
    CountAlive(step + 1 < options_.steps ? *std::min_element(time.begin(), time.end())
                                         : std::numeric_limits<double>::infinity());
    counts_alive = result_.peak_live_activations < most_alive_ || result_.peak_live_bytes < most_bytes_;
  }
  const double makespan = *std::max_element(time.begin(), time.end());
  for (size_t rank = 0; rank < result_.ranks.size(); ++rank) {
    RankStats& stats = result_.ranks[rank];
    stats.busy = busy[rank];
    stats.idle_by_cause[static_cast<int>(IdleCause::kDependency)] = idle[rank];
    stats.idle_by_cause[static_cast<int>(IdleCause::kNoWork)] = makespan - time[rank];
  }
  result_.drain_start = makespan;
  return Summarize(graph_, options_, makespan, std::move(result_));
}

}  // namespace weft
