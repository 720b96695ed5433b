#include "schedules/simulator/communication.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "schedules/graph/progress.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// Says when something is needed: at a tick, with so many messages still to follow it there. Smaller is
// sooner.
using Need = std::pair<int, int>;  // tick, minus the messages that follow

class TickModel {
 public:
  TickModel(const Graph& graph, const StepEdges& edges, int steps, const std::vector<SimulatedJob>& jobs)
      : graph_(graph), edges_(edges), steps_(steps), n_(graph.jobs_per_step()) {
    tasks_.resize(static_cast<size_t>(n_) * steps_);
    for (const SimulatedJob& j : jobs) {
      Task& task = tasks_[IdOf(j.job)];
      task.rank = j.rank;
      task.start = static_cast<int>(std::lround(j.start));
      task.end = static_cast<int>(std::lround(j.end));
      last_tick_ = std::max(last_tick_, task.end);
    }
    LinkTasks();
    FindNeeds();
    begins_.resize(last_tick_ + 1);
    ends_.resize(last_tick_ + 1);
    for (size_t id = 0; id < tasks_.size(); ++id) {
      if (tasks_[id].instant()) continue;
      begins_[tasks_[id].start].push_back(static_cast<int>(id));
      ends_[tasks_[id].end].push_back(static_cast<int>(id));
    }
  }

  // Returns the messages of a step of training: the mean over a period behind the first step, as far as there
  // are so many steps.
  double messages_of_step() const {
    int counted = 0;
    for (int step = 0; step < steps_; ++step) counted += IsCounted(step);
    return static_cast<double>(messages_) / counted;
  }

  // Returns true if no job is late with so many communication steps between two ticks.
  bool InTime(int steps_of_tick, bool one_at_a_time) {
    waiting_.assign(tasks_.size(), 0);
    for (size_t id = 0; id < tasks_.size(); ++id) waiting_[id] = tasks_[id].inputs;
    pending_.clear();
    arriving_.clear();
    // Jobs that wait for nothing and take no time are done at once.
    for (size_t id = 0; id < tasks_.size(); ++id) {
      if (tasks_[id].instant() && tasks_[id].inputs == 0) Done(static_cast<int>(id));
    }
    for (int tick = 0; tick <= last_tick_; ++tick) {
      for (const int id : ends_[tick]) Done(id);
      for (int i = 0; i < steps_of_tick && !(pending_.empty() && arriving_.empty()); ++i) {
        Step(one_at_a_time);
      }
      const auto late = [&](int id) { return waiting_[id] > 0; };
      if (std::any_of(begins_[tick].begin(), begins_[tick].end(), late)) return false;
    }
    return true;
  }

 private:
  struct Link {
    int to;
    bool message;
  };
  struct Task {
    Rank rank = 0;
    int start = 0, end = 0;
    int inputs = 0;
    Need need = {kNever, 0};  // of what it makes
    std::vector<Link> links;
    // It takes no time: it is done as soon as its inputs are there.
    bool instant() const { return start == end; }
  };
  // A message. Among those needed at the same time, messages over the same distance round the ranks go
  // together: all ranks can send and receive one then.
  struct Message {
    Need need;
    int distance;
    int from, to;
    bool operator<(const Message& o) const {
      return std::tie(need, distance, from, to) < std::tie(o.need, o.distance, o.from, o.to);
    }
  };

  bool IsCounted(int step) const {
    const int first = steps_ > 1 ? 1 : 0;
    return step >= first && step < first + graph_.schedule().period;
  }
  int IdOf(const Job& job) const { return job.step * n_ + graph_.IndexOf(job); }

  void LinkTasks() {
    for (size_t id = 0; id < tasks_.size(); ++id) {
      const int step = static_cast<int>(id) / n_;
      for (const StepEdges::Successor& s : edges_.SuccessorsOf(step, static_cast<int>(id) % n_)) {
        if (step + s.distance >= steps_) continue;
        const int to = (step + s.distance) * n_ + s.index;
        const bool message =
            s.tensor != TensorKind::kOrder && !s.joined && tasks_[to].rank != tasks_[id].rank;
        tasks_[id].links.push_back({to, message});
        ++tasks_[to].inputs;
        messages_ += message && IsCounted(step);
      }
    }
  }

  // Finds when the output of each job of no duration is needed. Such jobs stand in chains of a few, which
  // later steps prolong, so a few rounds settle them.
  void FindNeeds() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t i = tasks_.size(); i-- > 0;) {
        Task& task = tasks_[i];
        Need need = {kNever, 0};
        for (const Link& link : task.links) need = std::min(need, NeedOf(link));
        changed |= need != task.need;
        task.need = need;
      }
    }
  }

  // Returns when what travels along the link is needed at its end.
  Need NeedThere(const Link& link) const {
    const Task& to = tasks_[link.to];
    return to.instant() ? to.need : Need{to.start, 0};
  }
  Need NeedOf(const Link& link) const {
    Need need = NeedThere(link);
    if (need.first != kNever) need.second -= link.message;
    return need;
  }

  void Done(int id) {
    for (const Link& link : tasks_[id].links) {
      if (link.message) {
        const int ranks = graph_.schedule().ranks;
        const int distance = (tasks_[link.to].rank - tasks_[id].rank + ranks) % ranks;
        arriving_.push_back({NeedThere(link), distance, id, link.to});
      } else {
        Arrived(link.to);
      }
    }
  }

  void Arrived(int id) {
    if (--waiting_[id] == 0 && tasks_[id].instant()) Done(id);
  }

  // One communication step: of what was there when it began.
  void Step(bool one_at_a_time) {
    std::sort(arriving_.begin(), arriving_.end());
    const auto middle = static_cast<std::ptrdiff_t>(pending_.size());
    pending_.insert(pending_.end(), arriving_.begin(), arriving_.end());
    std::inplace_merge(pending_.begin(), pending_.begin() + middle, pending_.end());
    arriving_.clear();
    std::vector<bool> sends(graph_.schedule().ranks, false), receives = sends;
    std::vector<Message> kept;
    std::vector<int> arrived;
    for (const Message& m : pending_) {
      const Rank from = tasks_[m.from].rank, to = tasks_[m.to].rank;
      if (one_at_a_time && (sends[from] || receives[to])) {
        kept.push_back(m);
        continue;
      }
      sends[from] = receives[to] = true;
      arrived.push_back(m.to);
    }
    pending_ = std::move(kept);
    for (const int id : arrived) Arrived(id);
  }

  const Graph& graph_;
  const StepEdges& edges_;
  const int steps_, n_;
  int last_tick_ = 0;
  int64_t messages_ = 0;
  std::vector<Task> tasks_;
  std::vector<std::vector<int>> begins_, ends_;  // by tick, of jobs that take time
  // State of one try.
  std::vector<int> waiting_;       // inputs that are missing
  std::vector<Message> pending_;   // sorted: what can go, soonest needed first
  std::vector<Message> arriving_;  // what can go from the next step on
};

int Fewest(TickModel& model, int least, bool one_at_a_time) {
  int steps = least;
  while (!model.InTime(steps, one_at_a_time)) ++steps;
  return steps;
}

}  // namespace

int SteadySteps(const Schedule& schedule) { return schedule.MaxStaleness() + 2 + schedule.period; }

absl::StatusOr<CommunicationSteps> CountCommunicationSteps(const Graph& graph, int steps) {
  if (graph.depends_on_steps() && graph.steps() != steps)
    return CountCommunicationSteps(graph.ForSteps(steps), steps);
  SimulationOptions options;
  options.steps = steps;
  options.record_jobs = true;
  const auto tables = std::make_shared<const StepTables>(graph);
  const auto nominal = Simulate(graph, options, tables);
  if (!nominal.ok()) return nominal.status();
  TickModel model(graph, tables->edges, steps, nominal->jobs);
  CommunicationSteps count;
  count.messages = model.messages_of_step();
  count.chain = Fewest(model, 0, false);
  count.most = Fewest(model, count.chain, true);
  return count;
}

}  // namespace weft
