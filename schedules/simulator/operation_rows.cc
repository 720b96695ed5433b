#include "schedules/simulator/operation_rows.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

std::string Word(Operation operation, JobKind kind) {
  switch (operation) {
    case Operation::kForward:
      return "F";
    case Operation::kBackward:
      return kind == JobKind::kBackward ? "B" : kind == JobKind::kBackwardInput ? "I" : "W";
    case Operation::kGatherWeights:
    case Operation::kJoinGather:
      return "UNSHARD";
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return "REDUCE_GRAD";
    default:
      return absl::AsciiStrToUpper(OperationName(operation));
  }
}

// The form has no micro-batch in the cells of operations on the weights of a whole stage.
bool NamesMicrobatch(Operation operation, JobKind kind) {
  return HasMicrobatch(kind) && operation != Operation::kGatherWeights && operation != Operation::kJoinGather;
}

}  // namespace

std::string OperationRows(const Graph& graph, const std::vector<SimulatedJob>& jobs) {
  int first = jobs.empty() ? 0 : jobs.front().job.step;
  for (const SimulatedJob& j : jobs) first = std::min(first, j.job.step);
  std::vector<std::vector<std::string>> rows(graph.schedule().ranks);
  std::vector<Operation> operations;
  for (const SimulatedJob& j : jobs) {
    if (j.job.step != first) continue;
    operations.clear();
    graph.Operations(j.job, &operations);
    for (const Operation operation : operations) {
      std::string cell = absl::StrCat(j.job.stage, Word(operation, j.job.kind));
      if (NamesMicrobatch(operation, j.job.kind)) absl::StrAppend(&cell, j.job.microbatch);
      rows[j.rank].push_back(std::move(cell));
    }
  }
  std::string text;
  for (const auto& row : rows) absl::StrAppend(&text, absl::StrJoin(row, ","), "\n");
  return text;
}

}  // namespace weft
