// The simulated world: what must hold.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedules/sync/state_route.h"
#include "tests/simulation/world_run.h"

namespace weft {

// Copies of weights are there for a rank's job that runs and for the next one alone.
void World::CountFetch(const TensorKey& key) {
  const bool weights = key.kind == TensorKind::kWeights && HasMicrobatch(key.reader());
  if (!weights && key.kind != TensorKind::kState) return;
  std::set<Job>& fetching = fetching_[key.consumer];
  Job job = Job::Compute(key.step, key.stage, key.microbatch, key.reader());
  if (key.kind == TensorKind::kState) {
    job.kind = static_cast<JobKind>(key.part);
    job = *plan_->graph.route()->After(job);
  }
  fetching.insert(job);
  if (fetching.size() <= 2) return;
  std::string jobs;
  for (const Job& wanting : fetching) absl::StrAppend(&jobs, " ", Describe(wanting));
  Problem(absl::StrCat("rank ", key.consumer, " wants the weights of more than two jobs at once:", jobs));
}

// Every job that reads the rank's version has ended.
void World::CheckUnread(Rank rank, int stage, int version) {
  const Graph& graph = plan_->graph;
  for (int b = 0; b < graph.schedule().microbatches; ++b) {
    for (int t = std::max(version, first_step_); t < options_.steps; ++t) {
      for (JobKind kind : {JobKind::kForward, graph.input_backward(), graph.final_backward()}) {
        const Job job = Job::Compute(t, stage, b, kind);
        const bool reads = graph.VersionOf(job) == version &&
                           ((graph.protocol(0).layout() == Layout::kSliced) || graph.route() != nullptr ||
                            graph.schedule().weights(job) == rank);
        if (reads && !IsOver(job, rank)) {
          Problem(absl::StrCat("version ", version, " of stage ", stage, " is dropped on rank ", rank,
                               ", and ", Describe(job), " is still to read it"));
        }
      }
    }
  }
}

// A rank that computes a forward, and nothing else, may start what the order pairs with it.
void World::CountRunning(const StartEffect& start) {
  if (LaunchesAhead()) CountLaunched(start);
  std::vector<Job>& running = running_[start.rank];
  const Job& job = start.job;
  if (!running.empty()) {
    ++result_.pairs;
    const bool paired = running.size() == 1 && running[0].kind == JobKind::kForward && start.overlapped &&
                        (plan_->graph.MarksOf(job) & kOverlapsForward) != 0;
    if (!paired) Problem(absl::StrCat(Describe(job), " started beside ", Describe(running[0])));
  }
  running.push_back(job);
}

void World::CheckStart(const StartEffect& start) {
  CountRunning(start);
  if (!start.last()) return;
  if (!started_.insert(start.job).second) Problem(absl::StrCat(Describe(start.job), " started twice"));
  if (given_[start.job] > 0)
    Problem(absl::StrCat(Describe(start.job), " starts while its rank has given away too much"));
  std::vector<Edge> edges;
  plan_->graph.Predecessors(start.job, &edges);
  for (const Edge& e : edges) {
    const bool by_notice =
        e.tensor == TensorKind::kOrder && plan_->graph.RankOf(e.from) != plan_->graph.RankOf(e.to);
    if (e.from.step < first_step_ || HasEnded(e.from)) continue;
    if (by_notice || !IsOver(e.from, start.rank))
      Problem(absl::StrCat(Describe(start.job), " started before ", Describe(e.from), " ended"));
  }
}

// Tensors leave when the device has made them, which may be before their own process is told.
bool World::HasEnded(const Job& job) const {
  const auto end = device_end_.find(job);
  return ended_.count(job) != 0 || (end != device_end_.end() && end->second <= now_);
}

bool World::IsOver(const Job& job, Rank rank) const {
  if (HasEnded(job)) return true;
  return launched_.count(job) != 0 && process_of_rank_[plan_->graph.RankOf(job)] == process_of_rank_[rank];
}

// No more than the device takes, and beside a forward what the order pairs with it.
void World::CountLaunched(const StartEffect& start) {
  Device& device = devices_[start.rank];
  int same = 0;
  const StartEffect* newest = nullptr;
  for (const StartEffect& job : device.jobs) {
    same += job.overlapped == start.overlapped;
    if (!job.overlapped) newest = &job;
  }
  if (same >= options_.launch_ahead)
    Problem(absl::StrCat(Describe(start.job), " started behind ", same, " that are not done"));
  if (start.overlapped && (newest == nullptr || newest->job.kind != JobKind::kForward ||
                           (plan_->graph.MarksOf(start.job) & kOverlapsForward) == 0)) {
    Problem(absl::StrCat(Describe(start.job), " started beside no forward"));
  }
  result_.launched_behind += !device.jobs.empty();
  result_.launched_overlapped += start.overlapped;
  device.jobs.push_back(start);
}

// The device knows of its own order and of the fences of tensors alone: all else the core must have waited
// for.
void World::CheckDeviceOrder(const StartEffect& start, int64_t began) {
  std::vector<Edge> edges;
  plan_->graph.Predecessors(start.job, &edges);
  for (const Edge& e : edges) {
    const bool taken = start.last() ||
                       std::any_of(start.gradients.begin(), start.gradients.end(), [&](const TensorKey& key) {
                         return e.tensor == TensorKind::kGradient && key.microbatch == e.from.microbatch;
                       });
    if (e.from.step < first_step_ || !taken) continue;
    const auto end = device_end_.find(e.from);
    if (end == device_end_.end() || end->second > began)
      Problem(
          absl::StrCat("the device began ", Describe(start.job), " before it had done ", Describe(e.from)));
  }
}

// Checks that the bytes that forwards keep on each rank, and the gradients that wait to be taken, never
// exceed its budget.
void World::CountActivationBytes(const StartEffect& start, bool ended) {
  const RunTerms& terms = plan_->graph.terms();
  if (!terms.memory.has_value() || !HasMicrobatch(start.job.kind)) return;
  const int64_t bytes = MeasuredActivationBytes(terms, start.job.stage);
  if (!ended && start.job.kind == JobKind::kForward) activation_bytes_[start.rank] += bytes;
  if (ended && start.job.kind == plan_->graph.final_backward()) {
    activation_bytes_[start.rank] -= bytes;
    if (plan_->graph.protocol(start.job.stage).gradients_leave())
      activation_bytes_[start.rank] += terms.memory->gradient_bytes[start.job.stage];
    Job forward = start.job;
    forward.kind = JobKind::kForward;
    if (received_[start.rank].erase(forward) > 0)
      activation_bytes_[start.rank] -= terms.memory->received_bytes[forward.stage];
  }
  if (activation_bytes_[start.rank] > terms.memory->budget[start.rank]) {
    Problem(absl::StrCat("rank ", start.rank, " exceeds its budget with ", Describe(start.job)));
  }
}

// Checks that an input is wanted only when there is room for its copy.
void World::CountReceivedBytes(const TensorKey& wanted) {
  const Graph& graph = plan_->graph;
  const auto& memory = graph.terms().memory;
  if (!memory.has_value() || wanted.kind != TensorKind::kActivation ||
      wanted.use != static_cast<uint8_t>(JobKind::kForward)) {
    return;
  }
  const int stage = graph.consumers(wanted.stage)[wanted.part];
  const Job forward = Job::Compute(wanted.step, stage, wanted.microbatch, JobKind::kForward);
  if (!received_[wanted.consumer].insert(forward).second) return;
  activation_bytes_[wanted.consumer] += memory->received_bytes[stage];
  if (activation_bytes_[wanted.consumer] > memory->budget[wanted.consumer]) {
    Problem(
        absl::StrCat("rank ", wanted.consumer, " exceeds its budget with the copy for ", Describe(forward)));
  }
}

// The newest version is there, or the one before where it is installed late; and on who saves, all that steps
// behind the last would read, with the one that was put aside; and no other.
void World::CheckVersions(Rank rank, int stage, std::map<int, Value> versions) {
  const Graph& graph = plan_->graph;
  const auto& members = graph.members(stage);
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) return;
  const int member = static_cast<int>(found - members.begin());
  std::map<int, Value> wanted;
  const int newest = options_.steps - graph.protocol(stage).holder(member).installs_late;
  for (int v = graph.protocol(stage).holder(member).saves ? OldestRead(stage, newest) : newest; v <= newest;
       ++v)
    wanted[v] = plain_[v][stage][(graph.protocol(0).layout() == Layout::kSliced) ? member : 0];
  if (versions == wanted) return;
  const bool same = versions.size() == wanted.size() && versions.begin()->first == wanted.begin()->first;
  Problem(absl::StrCat("rank ", rank, same ? " differs from the plain loop in stage " : " ends with stage ",
                       stage, ", ", versions.size(), " versions of it from ",
                       versions.empty() ? -1 : versions.begin()->first, " on"));
}

}  // namespace weft
