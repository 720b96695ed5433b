#include "schedules/simulator/actions.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "schedules/simulator/transfer_order.h"

namespace weft {
namespace {

// Far above any real schedule; the tables below grow with their product.
constexpr int kMaxSize = 1'000'000;
constexpr int64_t kMaxScheduleJobs = 4'000'000;

absl::Status BadCell(size_t row, size_t cell, absl::string_view action) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "row %d, cell %d: \"%s\" is no compute action; it must be a stage, one of F, B, I, W and a "
      "micro-batch, as 0F0 (0SEND_F0 and the like are skipped; write the form without other actions)",
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
  if (stage >= kMaxSize || microbatch >= kMaxSize) {
    return absl::InvalidArgumentError(absl::StrFormat("row %d, cell %d: %s is beyond stage or micro-batch %d",
                                                      row + 1, cell + 1, action, kMaxSize - 1));
  }
  return Job::Compute(0, stage, microbatch, kind);
}

// Reads "2SEND_F1", "2RECV_B1": what follows from where the jobs are. (Actions that shard or reduce say more
// than the rows of a schedule here can.)
std::optional<TransferAction> ParseTransfer(absl::string_view action, size_t cell) {
  const size_t word = action.find_first_not_of("0123456789");
  if (word == 0 || word == absl::string_view::npos) return std::nullopt;
  absl::string_view rest = action.substr(word);
  TransferAction transfer;
  transfer.cell = static_cast<int>(cell) + 1;
  transfer.sends = absl::ConsumePrefix(&rest, "SEND_");
  if (!transfer.sends && !absl::ConsumePrefix(&rest, "RECV_")) return std::nullopt;
  transfer.of_forward = absl::ConsumePrefix(&rest, "F");
  if (!transfer.of_forward && !absl::ConsumePrefix(&rest, "B")) return std::nullopt;
  const bool digits = !rest.empty() && std::all_of(rest.begin(), rest.end(), absl::ascii_isdigit);
  const bool read = digits && absl::SimpleAtoi(action.substr(0, word), &transfer.stage) &&
                    absl::SimpleAtoi(rest, &transfer.microbatch);
  return read ? std::optional(transfer) : std::nullopt;
}

struct Entry {
  Job job;
  uint8_t marks = kInTurn;
  int cell = 0;  // from 1
};
using Rows = std::vector<std::vector<Entry>>;

// "(0F0;1B1)OVERLAP_F_B": a forward and the backward that runs beside it.
absl::Status ParsePair(absl::string_view text, size_t row, size_t cell, std::vector<Entry>& entries) {
  constexpr absl::string_view kPair = ")OVERLAP_F_B";
  const size_t middle = text.find(';');
  if (!absl::EndsWith(text, kPair) || middle == absl::string_view::npos) return BadCell(row, cell, text);
  const size_t end = text.size() - kPair.size();
  if (middle >= end) return BadCell(row, cell, text);
  const auto forward = ParseAction(text.substr(1, middle - 1), row, cell);
  const auto backward = ParseAction(text.substr(middle + 1, end - middle - 1), row, cell);
  if (!forward.ok() || !backward.ok() || forward->kind != JobKind::kForward ||
      backward->kind == JobKind::kForward || backward->kind == JobKind::kBackwardWeight) {
    return BadCell(row, cell, text);
  }
  entries.push_back({*forward, kInTurn, static_cast<int>(cell) + 1});
  entries.push_back({*backward, kOverlapsForward, static_cast<int>(cell) + 1});
  return absl::OkStatus();
}

absl::StatusOr<Rows> ParseRows(absl::string_view text) {
  Rows rows;
  std::vector<std::vector<TransferAction>> transfers;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    std::vector<Entry>& row = rows.emplace_back();
    transfers.emplace_back();
    size_t cell = 0;
    for (absl::string_view action : absl::StrSplit(line, ',')) {
      action = absl::StripAsciiWhitespace(action);
      if (absl::StartsWith(action, "(")) {
        absl::Status pair = ParsePair(action, rows.size() - 1, cell, row);
        if (!pair.ok()) return pair;
      } else if (const auto transfer = ParseTransfer(action, cell); transfer.has_value()) {
        transfers.back().push_back(*transfer);
      } else if (!action.empty()) {
        absl::StatusOr<Job> job = ParseAction(action, rows.size() - 1, cell);
        if (!job.ok()) return job.status();
        row.push_back({*job, kInTurn, static_cast<int>(cell) + 1});
      }
      ++cell;
    }
  }
  if (absl::Status s = CheckTransferOrder(transfers); !s.ok()) return s;
  return rows;
}

// Replaces every whole backward by both halves in one piece, for rows that use split backwards.
void SplitBackwards(Rows& rows) {
  for (std::vector<Entry>& row : rows) {
    std::vector<Entry> split;
    split.reserve(row.size());
    for (Entry e : row) {
      const bool whole = e.job.kind == JobKind::kBackward;
      if (whole) e.job.kind = JobKind::kBackwardInput;
      split.push_back(e);
      if (!whole) continue;
      e.job.kind = JobKind::kBackwardWeight;
      e.marks |= kFusedBackward;
      split.push_back(e);
    }
    row = std::move(split);
  }
}

// Finds the place of each action in the rows.
class Placement {
 public:
  struct Place {
    Rank row = -1;
    int cell = 0;
  };

  Placement(int stages, int microbatches)
      : microbatches_(microbatches), place_(static_cast<size_t>(stages) * microbatches * kKinds) {}

  Place& At(const Job& job) { return place_[Number(job)]; }
  // Returns the row of a job; for a kind that the rows do not use, the row of the forward.
  Rank RowOf(const Job& job) const {
    const Rank row = place_[Number(job)].row;
    return row >= 0 ? row : RowOfForward(job);
  }
  Rank RowOfForward(const Job& job) const { return place_[Number(job) / kKinds * kKinds].row; }

 private:
  static constexpr size_t kKinds = static_cast<size_t>(JobKind::kReduce);
  size_t Number(const Job& job) const {
    return (static_cast<size_t>(job.stage) * microbatches_ + job.microbatch) * kKinds +
           static_cast<size_t>(job.kind);
  }

  int microbatches_;
  std::vector<Place> place_;
};

// Every action once, and no job without one.
absl::Status PlaceJobs(const Rows& rows, const Schedule& s, Placement& placement) {
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const Entry& e : rows[r]) {
      Placement::Place& place = placement.At(e.job);
      if (place.row >= 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("row %d, cell %d: %s stands twice; it is in row %d, cell %d", r + 1, e.cell,
                            Describe(e.job), place.row + 1, place.cell));
      }
      place = {static_cast<Rank>(r), e.cell};
    }
  }
  std::vector<JobKind> backwards = {JobKind::kBackward};
  if (s.split_backward) backwards = {JobKind::kBackwardInput, JobKind::kBackwardWeight};
  for (int stage = 0; stage < s.stages; ++stage) {
    for (int b = 0; b < s.microbatches; ++b) {
      const Job forward = Job::Compute(0, stage, b, JobKind::kForward);
      const Placement::Place at = placement.At(forward);
      if (at.row < 0) return absl::InvalidArgumentError(absl::StrFormat("no row has %s", Describe(forward)));
      for (JobKind kind : backwards) {
        if (placement.At(Job::Compute(0, stage, b, kind)).row >= 0) continue;
        return absl::InvalidArgumentError(absl::StrFormat("row %d has %s in cell %d and no row has its %s",
                                                          at.row + 1, Describe(forward), at.cell,
                                                          JobKindName(kind)));
      }
    }
  }
  return absl::OkStatus();
}

// "0F0"; F, B, I and W are that format's letters.
std::string ActionOf(const Job& job) {
  constexpr char kLetters[] = {'F', 'B', 'I', 'W'};
  return absl::StrCat(job.stage, std::string(1, kLetters[static_cast<int>(job.kind)]), job.microbatch);
}

}  // namespace

std::string ActionsOfOrder(const Schedule& schedule) {
  std::string text;
  for (size_t r = 0; r < schedule.order.size(); ++r) {
    const std::vector<Job>& row = schedule.order[r];
    const auto marks = [&](size_t i) {
      return schedule.order_marks.empty() || i >= row.size() ? uint8_t{0} : schedule.order_marks[r][i];
    };
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) {
      Job job = row[i];
      const bool overlapped = marks(i) & kOverlapsForward;
      if (marks(i + 1) & kFusedBackward) {
        job.kind = JobKind::kBackward;
        ++i;
      }
      if (overlapped && !cells.empty() && cells.back()[0] != '(') {
        cells.back() = absl::StrCat("(", cells.back(), ";", ActionOf(job), ")OVERLAP_F_B");
      } else {
        // The table has no word for a third job beside a forward: it follows in turn.
        cells.push_back(ActionOf(job));
      }
    }
    // A line without any cell would be no row.
    absl::StrAppend(&text, cells.empty() ? "," : absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

absl::StatusOr<Schedule> ScheduleFromActions(absl::string_view text) {
  absl::StatusOr<Rows> rows = ParseRows(text);
  if (!rows.ok()) return rows.status();
  Schedule s;
  for (const std::vector<Entry>& row : *rows) {
    for (const auto& [job, marks, cell] : row) {
      s.stages = std::max(s.stages, job.stage + 1);
      s.microbatches = std::max(s.microbatches, job.microbatch + 1);
      s.split_backward |= job.kind == JobKind::kBackwardInput || job.kind == JobKind::kBackwardWeight;
    }
  }
  if (s.stages == 0) return absl::InvalidArgumentError("there are no actions");
  if (int64_t{s.stages} * s.microbatches > kMaxScheduleJobs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages of %d micro-batches are more than %d forwards", s.stages, s.microbatches,
                        kMaxScheduleJobs));
  }
  if (s.split_backward) SplitBackwards(*rows);
  auto placement = std::make_shared<Placement>(s.stages, s.microbatches);
  if (absl::Status status = PlaceJobs(*rows, s, *placement); !status.ok()) return status;
  s.name = "actions";
  s.ranks = static_cast<int>(rows->size());
  s.compute = [p = std::shared_ptr<const Placement>(placement)](const Job& j) { return p->RowOf(j); };
  s.weights = [p = std::shared_ptr<const Placement>(placement)](const Job& j) { return p->RowOfForward(j); };
  s.priority = [stages = s.stages, microbatches = s.microbatches](const Job& j) {
    const auto kind = static_cast<int64_t>(j.kind);
    return ((j.step * int64_t{kJobKinds} + kind) * microbatches + j.microbatch) * stages + j.stage;
  };
  bool marked = false;
  for (const std::vector<Entry>& row : *rows) {
    std::vector<Job>& order = s.order.emplace_back();
    std::vector<uint8_t>& marks = s.order_marks.emplace_back();
    for (const Entry& e : row) {
      order.push_back(e.job);
      marks.push_back(e.marks);
      marked |= e.marks != kInTurn;
    }
  }
  if (!marked) s.order_marks.clear();
  return s;
}

}  // namespace weft
