#include "planner/pattern.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

absl::Status CheckHold(const PatternProblem& problem, const PatternHold& hold) {
  const int tasks = static_cast<int>(problem.tasks.size());
  const bool known = hold.rank >= 0 && hold.rank < problem.ranks() && hold.bytes >= 0 && hold.first >= 0 &&
                     hold.first <= hold.last && hold.last < tasks;
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a hold of %d bytes on rank %d goes from task %d to task %d of %d", hold.bytes,
                        hold.rank, hold.first, hold.last, tasks));
  }
  if (hold.first / problem.tasks_of_batch() != hold.last / problem.tasks_of_batch()) {
    return absl::InvalidArgumentError(absl::StrFormat("the hold from %s to %s spans two batches",
                                                      problem.tasks[hold.first].name,
                                                      problem.tasks[hold.last].name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProblem(const PatternProblem& problem) {
  if (problem.batches < 1 || problem.tasks.empty() || problem.tasks.size() % problem.batches != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tasks are no %d equal batches", problem.tasks.size(), problem.batches));
  }
  if (problem.resident.size() != problem.memory.size()) {
    return absl::InvalidArgumentError("resident bytes and memory are given for different numbers of ranks");
  }
  for (const PatternTask& task : problem.tasks) {
    if (task.duration < 0 || task.lag < 0 || (task.duration == 0 && !task.resources.empty())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s takes %d ticks and has a lag of %d", task.name, task.duration, task.lag));
    }
  }
  std::vector<int> holder(problem.ranks(), -1);  // a task that holds bytes of the rank
  for (const PatternHold& hold : problem.holds) {
    if (absl::Status sound = CheckHold(problem, hold); !sound.ok()) return sound;
    for (const int task : {hold.first, hold.last}) {
      const std::vector<int>& resources = problem.tasks[task].resources;
      int& other = holder[hold.rank];
      if (other < 0) other = task;
      const std::vector<int>& shared = problem.tasks[other].resources;
      if (!resources.empty() && !shared.empty() && resources.front() == shared.front()) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s and %s hold bytes of rank %d and share no resource", problem.tasks[task].name,
                          problem.tasks[other].name, hold.rank));
    }
  }
  return absl::OkStatus();
}

int64_t LoadBound(const PatternProblem& problem) {
  std::map<int, int64_t> load;
  for (const PatternTask& task : problem.tasks) {
    for (const int resource : task.resources) load[resource] += task.duration;
  }
  int64_t most = 1;
  for (const auto& [resource, ticks] : load) most = std::max(most, ticks);
  return most;
}

int64_t ChainTicks(const PatternProblem& problem) {
  int64_t ticks = 0;
  for (int task = 0; task < problem.tasks_of_batch(); ++task) {
    ticks += problem.tasks[task].duration + problem.tasks[task].lag;
  }
  return std::max<int64_t>(1, ticks);
}

}  // namespace weft
