#include "coordinator/store/row_changes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "coordinator/store/stored_codec.h"

namespace weft {
namespace {

template <class Value>
absl::Status Take(absl::StatusOr<Value> value, Value* out) {
  if (!value.ok()) return value.status();
  *out = *std::move(value);
  return absl::OkStatus();
}

// Gathers the changes of one batch.
class ChangesOfBatch {
 public:
  ChangesOfBatch(const std::vector<Records>& batch, int64_t unix_minus_monotonic_ns,
                 const std::function<bool(uint64_t run)>& has_rows, size_t most_bytes)
      : batch_(batch), shift_(unix_minus_monotonic_ns), has_rows_(has_rows), most_bytes_(most_bytes) {
    for (const Records& records : batch_) {
      changes_.epoch = std::max(changes_.epoch, records.epoch);
      for (const AttemptRecord& attempt : records.attempts) attempts_[attempt.run] = &attempt;
      for (const RunFigures& figures : records.figures) figures_[figures.info.id] = &figures;
      ended_.insert(records.written.begin(), records.written.end());
      forgotten_.insert(records.forgotten.begin(), records.forgotten.end());
    }
  }

  RowChanges Take() && {
    for (const Records& records : batch_) AddSubmissions(records);
    for (const Records& records : batch_) AddProgress(records);
    for (const auto& [run, attempt] : attempts_) {
      if (Lasts(run)) Put({run, RowKind::kAttempt}, BodyOf(*attempt));
    }
    for (const auto& [run, figures] : figures_) PutFigures(run, *figures);
    for (const Records& records : batch_) AddEnds(records);
    return std::move(changes_);
  }

 private:
  bool Lasts(uint64_t run) const {
    return forgotten_.count(run) == 0 && (submitted_.count(run) > 0 || has_rows_(run));
  }

  RowChange& Put(const StoredRow& row, std::string body) {
    return changes_.rows.emplace_back(RowChange{RowChange::Kind::kPut, row, std::move(body)});
  }
  void PutFigures(uint64_t run, const RunFigures& figures) {
    if (Lasts(run)) Put({run, RowKind::kFigures}, BodyOf(figures));
  }

  std::string BodyOf(const RunFigures& figures) const {
    std::string body = EncodeStored(figures, shift_);
    if (body.size() <= most_bytes_) return body;
    RunFigures fewer = figures;
    fewer.info.reports.clear();
    return EncodeStored(fewer, shift_);
  }
  std::string BodyOf(const AttemptRecord& attempt) const {
    std::string body = EncodeStored(attempt);
    if (body.size() <= most_bytes_) return body;
    AttemptRecord fewer = attempt;
    fewer.former.clear();
    return EncodeStored(fewer);
  }

  // No run is stored without its figures.
  void AddSubmissions(const Records& records) {
    for (const Submission& submission : records.submissions) {
      const uint64_t run = submission.run;
      changes_.last_run = std::max(changes_.last_run, run);
      submitted_.insert(run);
      if (!Lasts(run)) continue;
      changes_.submitted.push_back(run);
      Put({run, RowKind::kSubmission}, EncodeStored(submission)).joined = true;
      const auto figures = figures_.find(run);
      if (figures == figures_.end()) continue;
      PutFigures(run, *figures->second);
      figures_.erase(figures);
    }
  }

  void AddProgress(const Records& records) {
    const auto counts = [this](uint64_t run) { return Lasts(run) && ended_.count(run) == 0; };
    for (const StepDone& step : records.steps) {
      if (counts(step.run)) Put({step.run, RowKind::kStep, step.step}, EncodeStored(step, shift_));
    }
    for (const Validation& validation : records.validations) {
      if (counts(validation.run))
        Put({validation.run, RowKind::kValidation, validation.step}, EncodeStored(validation));
    }
  }

  void AddEnds(const Records& records) {
    for (const uint64_t run : records.written) {
      if (!Lasts(run)) continue;
      Put({run, RowKind::kWritten}, "").joined = true;
      changes_.rows.push_back({RowChange::Kind::kRemoveProgress, {run}, ""});
    }
    for (const uint64_t run : records.forgotten) {
      if (!has_rows_(run)) continue;
      changes_.forgotten.push_back(run);
      changes_.rows.push_back({RowChange::Kind::kRemoveRun, {run}, ""});
    }
  }

  const std::vector<Records>& batch_;
  const int64_t shift_;
  const std::function<bool(uint64_t run)>& has_rows_;
  const size_t most_bytes_;
  // The last of each run. Figures come behind the attempt that they name.
  std::map<uint64_t, const AttemptRecord*> attempts_;
  std::map<uint64_t, const RunFigures*> figures_;
  std::set<uint64_t> submitted_, ended_, forgotten_;
  RowChanges changes_;
};

}  // namespace

uint64_t ChecksumOf(const StoredRow& row, absl::string_view bytes) {
  return Fnv1a()
      .Add(row.run)
      .Add(static_cast<uint64_t>(row.kind))
      .Add(static_cast<uint64_t>(row.step))
      .Add(bytes)
      .hash();
}

RowChanges ChangesOf(const std::vector<Records>& batch, int64_t unix_minus_monotonic_ns,
                     const std::function<bool(uint64_t run)>& has_rows, size_t most_bytes) {
  return ChangesOfBatch(batch, unix_minus_monotonic_ns, has_rows, most_bytes).Take();
}

absl::Status AddRow(const StoredRow& row, absl::string_view body, int64_t unix_minus_monotonic_ns,
                    StoredState* state) {
  StoredRun& run = state->runs[row.run];
  switch (row.kind) {
    case RowKind::kSubmission:
      return Take(DecodeSubmission(body), &run.submission);
    case RowKind::kFigures:
      return Take(DecodeFigures(body, unix_minus_monotonic_ns), &run.figures);
    case RowKind::kStep:
      return Take(DecodeStep(body, unix_minus_monotonic_ns), &run.steps.emplace_back());
    case RowKind::kValidation:
      return Take(DecodeValidation(body), &run.validations.emplace_back());
    case RowKind::kAttempt:
      return Take(DecodeAttempt(body), &run.attempt);
    case RowKind::kWritten:
      run.written = true;
      return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("a row of the kind ", static_cast<int>(row.kind)));
}

}  // namespace weft
