#include "schedules/check/check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/check/deadlock.h"
#include "schedules/dispatch/admission.h"
#include "schedules/graph/graph.h"
#include "schedules/graph/progress.h"
#include "schedules/graph/size.h"
#include "schedules/graph/step_edges.h"
#include "schedules/simulator/simulate.h"
#include "schedules/sync/protocol.h"

namespace weft {
namespace {

std::vector<JobKind> KindsOf(const Schedule& s) {
  if (s.split_backward) return {JobKind::kForward, JobKind::kBackwardInput, JobKind::kBackwardWeight};
  return {JobKind::kForward, JobKind::kBackward};
}

absl::Status CheckRanks(const Schedule& s) {
  for (int step = 0; step < s.period; ++step) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int b = 0; b < s.microbatches; ++b) {
        const Rank backward = s.compute(Job::Compute(step, stage, b, KindsOf(s)[1]));
        for (JobKind kind : KindsOf(s)) {
          const Job job = Job::Compute(step, stage, b, kind);
          const Rank c = s.compute(job), w = s.weights(job);
          if (c < 0 || c >= s.ranks) {
            return absl::InvalidArgumentError(absl::StrFormat(
                "compute places %s on rank %d; ranks are 0 to %d", Describe(job), c, s.ranks - 1));
          }
          if (w < 0 || w >= s.ranks) {
            return absl::InvalidArgumentError(
                absl::StrFormat("nobody holds the weights of %s: weights names rank %d; ranks are 0 to %d",
                                Describe(job), w, s.ranks - 1));
          }
          if (kind == JobKind::kBackwardWeight && c != backward) {
            return absl::InvalidArgumentError(absl::StrFormat(
                "%s is on rank %d but its backward_input is on rank %d; but it needs what is kept there",
                Describe(job), c, backward));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPriorities(const Schedule& s) {
  std::vector<std::pair<Rank, std::pair<int64_t, Job>>> all;
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (JobKind kind : KindsOf(s)) {
        const Job job = Job::Compute(0, stage, b, kind);
        all.push_back({s.compute(job), {s.priority(job), job}});
      }
    }
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].first == all[i - 1].first && all[i].second.first == all[i - 1].second.first) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s and %s have the same priority %d on rank %d; priorities of a rank must differ",
                          Describe(all[i - 1].second.second), Describe(all[i].second.second),
                          all[i].second.first, all[i].first));
    }
  }
  return absl::OkStatus();
}

// Checks that the job's priority grows by the same number in the first two periods of steps.
absl::Status CheckGrowthOfPriority(const Schedule& s, const Job& job) {
  Job next = job, after = job;
  next.step += s.period;
  after.step += 2 * s.period;
  const int64_t first = s.priority(job), second = s.priority(next), third = s.priority(after);
  if (third - second == second - first) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has priority %d, and %d and %d in the next periods of steps; a priority must grow "
                      "by the same number "
                      "in every period",
                      Describe(job), first, second, third));
}

absl::Status CheckGrowthOfPriorities(const Schedule& s) {
  for (int step = 0; step < s.period; ++step) {
    for (int stage = 0; stage < s.stages; ++stage) {
      for (int b = 0; b < s.microbatches; ++b) {
        for (JobKind kind : KindsOf(s)) {
          absl::Status grows = CheckGrowthOfPriority(s, Job::Compute(step, stage, b, kind));
          if (!grows.ok()) return grows;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const Schedule& s) {
  if (!s.limit) return absl::OkStatus();
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      const Job job = Job::Compute(0, stage, b, JobKind::kForward);
      const std::optional<int> limit = s.limit(s.compute(job), stage);
      if (limit.has_value() && *limit < 1) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the limit of stage %d on rank %d is %d, so %s can never start; use at least 1",
                            stage, s.compute(job), *limit, Describe(job)));
      }
    }
  }
  return absl::OkStatus();
}

// Checks that each list names the compute jobs of its rank once, at step 0.
absl::Status CheckOrder(const Schedule& s) {
  if (s.order.empty()) return absl::OkStatus();
  if (static_cast<int>(s.order.size()) != s.ranks || s.period != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a fixed order needs a list for each of the %d ranks and the same placement in every "
                        "step; there are %d "
                        "lists and the placement repeats after %d steps",
                        s.ranks, s.order.size(), s.period));
  }
  const std::vector<JobKind> kinds = KindsOf(s);
  const auto number = [&](const Job& job) {
    return (static_cast<size_t>(job.stage) * s.microbatches + job.microbatch) * kJobKinds +
           static_cast<size_t>(job.kind);
  };
  std::vector<bool> listed(static_cast<size_t>(s.stages) * s.microbatches * kJobKinds, false);
  for (Rank r = 0; r < s.ranks; ++r) {
    for (const Job& job : s.order[r]) {
      const bool known = job.step == 0 && job.stage >= 0 && job.stage < s.stages && job.microbatch >= 0 &&
                         job.microbatch < s.microbatches &&
                         std::find(kinds.begin(), kinds.end(), job.kind) != kinds.end();
      if (!known) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the order of rank %d lists %s, which is not a compute job of step 0 of the schedule", r,
            Describe(job)));
      }
      if (s.compute(job) != r) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the order of rank %d lists %s, which is on rank %d", r, Describe(job), s.compute(job)));
      }
      if (listed[number(job)]) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the order of rank %d lists %s twice", r, Describe(job)));
      }
      listed[number(job)] = true;
    }
  }
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (JobKind kind : kinds) {
        const Job job = Job::Compute(0, stage, b, kind);
        if (listed[number(job)]) continue;
        return absl::InvalidArgumentError(
            absl::StrFormat("the order of rank %d lacks %s", s.compute(job), Describe(job)));
      }
    }
  }
  return absl::OkStatus();
}

// Checks that each mark is on an entry that can have it.
absl::Status CheckMarks(const Schedule& s) {
  if (s.order_marks.empty()) return absl::OkStatus();
  bool shaped = s.order_marks.size() == s.order.size();
  for (size_t r = 0; shaped && r < s.order.size(); ++r) shaped = s.order_marks[r].size() == s.order[r].size();
  if (!shaped) return absl::InvalidArgumentError("the fixed orders have more or fewer marks than entries");
  for (size_t r = 0; r < s.order.size(); ++r) {
    for (size_t i = 0; i < s.order[r].size(); ++i) {
      const uint8_t marks = s.order_marks[r][i];
      if (marks == kInTurn) continue;
      const Job& job = s.order[r][i];
      const Job before = i > 0 ? s.order[r][i - 1] : job;
      const uint8_t marks_before = i > 0 ? s.order_marks[r][i - 1] : 0;
      if (marks & kOverlapsForward) {
        const bool follows = before.kind == JobKind::kForward || (marks_before & kOverlapsForward);
        if (i == 0 || !follows || job.kind == JobKind::kForward) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "the order of rank %d pairs %s with a forward, but no forward comes right before it", r,
              Describe(job)));
        }
      }
      if (marks & kFusedBackward) {
        const bool joins = i > 0 && job.kind == JobKind::kBackwardWeight &&
                           before.kind == JobKind::kBackwardInput && before.stage == job.stage &&
                           before.microbatch == job.microbatch;
        if (!joins) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "the order of rank %d joins %s with its backward_input, which does not come right before it", r,
              Describe(job)));
        }
      }
    }
  }
  return absl::OkStatus();
}

// The job graph together with the edges of the fixed orders, over a period of steps and as many more as its
// longest edge spans.
class Waits {
 public:
  Waits(const Graph& graph, std::shared_ptr<const StepTables> tables)
      : graph_(graph),
        progress_(graph, {}, std::move(tables)),
        n_(graph.jobs_per_step()),
        steps_(progress_.edges().max_distance() + progress_.edges().period()) {
    previous_.assign(n_, -1);
    next_.assign(n_, -1);
    for (const std::vector<Job>& order : graph.schedule().order) {
      for (size_t i = 1; i < order.size(); ++i) {
        const int from = graph.IndexOf(order[i - 1]), to = graph.IndexOf(order[i]);
        next_[from] = to;
        previous_[to] = from;
      }
    }
  }

  // A job that stays unvisited lies on or behind a cycle. A step's order begins after the end of the order
  // before, which closes no cycle that a step does not have by itself.
  absl::Status CheckAcyclic() {
    for (int t = 0; t < steps_; ++t) {
      StepProgress::Step& step = progress_.Open(t);
      for (int i = 0; i < n_; ++i) step.missing[i] += previous_[i] >= 0;
    }
    const int64_t visited = ForEachInOrder(
        &progress_, [](JobId) {}, [](JobId, JobId) {}, [this](int index) { return next_[index]; });
    if (visited == int64_t{n_} * steps_) return absl::OkStatus();
    return DescribeCycle();
  }

 private:
  struct Wait {
    Job job;
    bool for_order;  // `job` is waited for because it comes before in the rank's order
  };

  bool IsStuck(const Job& job) const {
    return job.step >= 0 && job.step < steps_ && progress_.At(job.step).missing[graph_.IndexOf(job)] > 0;
  }
  // A stuck predecessor of a stuck job. There is one: a job whose predecessors were all visited is not stuck.
  Wait StuckBefore(const Job& job) const {
    const int previous = previous_[graph_.IndexOf(job)];
    std::vector<Edge> edges;
    graph_.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (IsStuck(e.from)) return {e.from, false};
    }
    return {previous >= 0 ? graph_.JobAt(job.step, previous) : job, true};
  }
  absl::Status DescribeCycle() const {
    Job job;
    for (int t = steps_ - 1; t >= 0; --t) {
      for (int i = n_ - 1; i >= 0; --i) {
        if (progress_.At(t).missing[i] > 0) job = graph_.JobAt(t, i);
      }
    }
    std::vector<Wait> walk;
    absl::flat_hash_map<Job, size_t> at;
    for (Wait next{job, false}; at.emplace(next.job, walk.size()).second; next = StuckBefore(next.job)) {
      walk.push_back(next);
    }
    const Wait back = StuckBefore(walk.back().job);
    const size_t first = at[back.job];
    constexpr size_t kMaxNamed = 16;
    std::string text =
        absl::StrCat("the job graph has a cycle: ", Describe(back.job), " on rank ", graph_.RankOf(back.job));
    for (size_t i = first + 1; i <= walk.size(); ++i) {
      const Wait& wait = i < walk.size() ? walk[i] : back;
      if (i == first + kMaxNamed && i < walk.size()) {
        absl::StrAppend(&text, ", and so on over ", walk.size() - i, " more jobs");
        i = walk.size() - 1;
        continue;
      }
      absl::StrAppend(&text, wait.for_order ? " comes in its rank's order after " : " waits for ",
                      i < walk.size() ? Describe(wait.job) : "the first", i < walk.size() ? ", which" : "");
    }
    return absl::InvalidArgumentError(text);
  }

  const Graph& graph_;
  StepProgress progress_;
  const int n_, steps_;
  std::vector<int> previous_, next_;  // by job, in its rank's order; -1 for none
};

}  // namespace

absl::Status CheckInputs(const RunSchedule& schedule) {
  const int stages = schedule.scheme.stages;
  const std::vector<std::vector<int>>& inputs = schedule.terms.inputs;
  if (inputs.empty()) return absl::OkStatus();
  if (inputs.size() != static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("inputs are given for %d stages, but there are %d stages", inputs.size(), stages));
  }
  std::vector<bool> read(stages, false);
  for (int stage = 0; stage < stages; ++stage) {
    int before = -1;
    for (const int input : inputs[stage]) {
      if (input <= before || input >= stage) {
        return absl::InvalidArgumentError(
            absl::StrFormat("stage %d reads stage %d; it can read earlier stages only, each once, in "
                            "ascending order",
                            stage, input));
      }
      read[before = input] = true;
    }
  }
  const auto unread = std::find(read.begin(), read.end() - 1, false);
  if (unread == read.end() - 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "no stage reads the output of stage %d; only the last stage ends in the loss", unread - read.begin()));
}

absl::Status CheckSchedule(const RunSchedule& schedule) { return CheckedTables(schedule).status(); }

absl::StatusOr<std::shared_ptr<const StepTables>> CheckedTables(const RunSchedule& schedule) {
  const Schedule& s = schedule.scheme;
  if (s.stages < 1 || s.microbatches < 1 || s.ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a schedule needs at least one stage, micro-batch and rank; it has %d, %d, %d",
                        s.stages, s.microbatches, s.ranks));
  }
  if (!s.compute || !s.weights || !s.priority || !s.sync)
    return absl::InvalidArgumentError("a schedule needs compute, weights, priority and sync");
  if (absl::Status status = CheckSize(s); !status.ok()) return status;
  absl::Status status = CheckInputs(schedule);
  if (status.ok()) status = CheckRanks(s);
  if (status.ok()) status = s.sync->Check(schedule);
  for (auto* check : {CheckPriorities, CheckGrowthOfPriorities, CheckLimits, CheckOrder, CheckMarks}) {
    if (status.ok()) status = check(s);
  }
  if (status.ok()) status = CheckMemory(schedule);
  if (!status.ok()) return status;
  const Graph graph(schedule);
  // The protocols whose edges may come from later steps have proved them to lead forward in time.
  std::shared_ptr<const StepTables> tables;
  if (!graph.depends_on_steps()) {
    tables = std::make_shared<const StepTables>(graph);
    status = Waits(graph, tables).CheckAcyclic();
    if (!status.ok()) return status;
  }
  status = ProveDeadlockFree(graph, tables);
  if (!status.ok()) return status;
  if (!schedule.terms.memory.has_value()) return tables;
  // The nominal run of admission.h.
  SimulationOptions two_steps;
  two_steps.steps = 2;
  const auto run = Simulate(graph, two_steps, tables);
  if (!run.ok()) return absl::InvalidArgumentError(run.status().message());
  return tables;
}

}  // namespace weft
