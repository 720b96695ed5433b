#include "schedules/actions.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

// Far above any real schedule; the tables below grow with their product.
constexpr int kSizeMost = 1'000'000;
constexpr int64_t kJobsMost = 4'000'000;

absl::Status BadCell(size_t row, size_t cell, absl::string_view action) {
  return absl::InvalidArgumentError(
      absl::StrFormat("row %d, cell %d: \"%s\" is no compute action; it must be a stage, one of F, B, I, W "
                      "and a micro-batch, "
                      "as 0F0 (write the compute-only form, without communication)",
                      row + 1, cell + 1, action.substr(0, 40)));
}

// "12F3".
absl::StatusOr<Job> ParseAction(absl::string_view action, size_t row, size_t cell) {
  const size_t letter = action.find_first_not_of("0123456789");
  if (letter == absl::string_view::npos) return BadCell(row, cell, action);
  JobKind kind;
  switch (action[letter]) {
    case 'F':
      kind = JobKind::kForward;
      break;
    case 'B':
      kind = JobKind::kBackward;
      break;
    case 'I':
      kind = JobKind::kBackwardInput;
      break;
    case 'W':
      kind = JobKind::kBackwardWeight;
      break;
    default:
      return BadCell(row, cell, action);
  }
  int stage = 0, microbatch = 0;
  const absl::string_view number = action.substr(letter + 1);
  const bool digits = !number.empty() && std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(action.substr(0, letter), &stage) ||
      !absl::SimpleAtoi(number, &microbatch)) {
    return BadCell(row, cell, action);
  }
  if (stage >= kSizeMost || microbatch >= kSizeMost) {
    return absl::InvalidArgumentError(absl::StrFormat("row %d, cell %d: %s is beyond stage or micro-batch %d",
                                                      row + 1, cell + 1, action, kSizeMost - 1));
  }
  return Job::Compute(0, stage, microbatch, kind);
}

absl::StatusOr<std::vector<std::vector<Job>>> ParseRows(absl::string_view text) {
  std::vector<std::vector<Job>> rows;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    std::vector<Job>& row = rows.emplace_back();
    size_t cell = 0;
    for (absl::string_view action : absl::StrSplit(line, ',')) {
      action = absl::StripAsciiWhitespace(action);
      if (!action.empty()) {
        absl::StatusOr<Job> job = ParseAction(action, rows.size() - 1, cell);
        if (!job.ok()) return job.status();
        row.push_back(*job);
      }
      ++cell;
    }
  }
  return rows;
}

// Where the rows place each micro-batch's pass through each stage.
class Placement {
 public:
  Placement(int stages, int microbatches)
      : microbatches_(microbatches), rank_(static_cast<size_t>(stages) * microbatches, -1) {}

  Rank& At(const Job& job) { return rank_[static_cast<size_t>(job.stage) * microbatches_ + job.microbatch]; }
  Rank At(const Job& job) const {
    return rank_[static_cast<size_t>(job.stage) * microbatches_ + job.microbatch];
  }

 private:
  int microbatches_;
  std::vector<Rank> rank_;
};

// The places of all jobs; a forward and its backwards must be in one row.
absl::StatusOr<std::shared_ptr<const Placement>> PlaceJobs(const std::vector<std::vector<Job>>& rows,
                                                           int stages, int microbatches) {
  auto placement = std::make_shared<Placement>(stages, microbatches);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const Job& job : rows[r]) {
      Rank& rank = placement->At(job);
      if (rank >= 0 && rank != static_cast<Rank>(r)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("row %d has %s, but row %d has another job of that stage and micro-batch; a "
                            "forward and its backward are one rank's",
                            r + 1, Describe(job), rank + 1));
      }
      rank = static_cast<Rank>(r);
    }
  }
  for (int s = 0; s < stages; ++s) {
    for (int b = 0; b < microbatches; ++b) {
      const Job job = Job::Compute(0, s, b, JobKind::kForward);
      if (placement->At(job) < 0) {
        return absl::InvalidArgumentError(absl::StrFormat("no row has %s", Describe(job)));
      }
    }
  }
  return placement;
}

std::vector<std::vector<Job>> SplitBackwards(const std::vector<std::vector<Job>>& rows) {
  std::vector<std::vector<Job>> split(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    for (Job job : rows[r]) {
      const bool whole = job.kind == JobKind::kBackward;
      if (whole) job.kind = JobKind::kBackwardInput;
      split[r].push_back(job);
      if (!whole) continue;
      job.kind = JobKind::kBackwardWeight;
      split[r].push_back(job);
    }
  }
  return split;
}

}  // namespace

absl::StatusOr<Schedule> ScheduleFromActions(absl::string_view text) {
  absl::StatusOr<std::vector<std::vector<Job>>> rows = ParseRows(text);
  if (!rows.ok()) return rows.status();
  Schedule s;
  for (const std::vector<Job>& row : *rows) {
    for (const Job& job : row) {
      s.stages = std::max(s.stages, job.stage + 1);
      s.microbatches = std::max(s.microbatches, job.microbatch + 1);
      s.split_backward |= job.kind == JobKind::kBackwardInput || job.kind == JobKind::kBackwardWeight;
    }
  }
  if (s.stages == 0) return absl::InvalidArgumentError("there are no actions");
  if (int64_t{s.stages} * s.microbatches > kJobsMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d stages of %d micro-batches are more than %d forwards", s.stages, s.microbatches, kJobsMost));
  }
  auto placement = PlaceJobs(*rows, s.stages, s.microbatches);
  if (!placement.ok()) return placement.status();
  s.name = "actions";
  s.ranks = static_cast<int>(rows->size());
  s.compute = s.weights = [p = *placement](const Job& j) { return p->At(j); };
  s.priority = [stages = s.stages, microbatches = s.microbatches](const Job& j) {
    const auto kind = static_cast<int64_t>(j.kind);
    return ((j.step * int64_t{kJobKinds} + kind) * microbatches + j.microbatch) * stages + j.stage;
  };
  s.order = s.split_backward ? SplitBackwards(*rows) : *std::move(rows);
  return s;
}

}  // namespace weft
