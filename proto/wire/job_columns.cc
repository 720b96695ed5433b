#include "proto/wire/job_columns.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"

namespace weft::wire {

JobColumnsWriter::JobColumnsWriter(int count, v1::JobColumns* columns) : columns_(*columns) {
  columns_.mutable_kind()->assign(count, '\0');
  columns_.mutable_step()->Resize(count, 0);
  columns_.mutable_stage()->Resize(count, 0);
  columns_.mutable_part()->Resize(count, 0);
}

void JobColumnsWriter::Add(const Job& job) {
  (*columns_.mutable_kind())[row_] = static_cast<char>(job.kind);
  columns_.set_step(row_, job.step - step_);
  columns_.set_stage(row_, static_cast<uint32_t>(job.stage));
  columns_.set_part(row_, static_cast<uint32_t>(HasMicrobatch(job.kind) ? job.microbatch : job.member));
  step_ = job.step;
  ++row_;
}

absl::Status CheckColumns(const v1::JobColumns& columns) {
  const int rows = static_cast<int>(columns.kind().size());
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of jobs", rows, kMaxJobs));
  if (columns.step_size() != rows || columns.stage_size() != rows || columns.part_size() != rows) {
    return absl::InvalidArgumentError(absl::StrCat("columns of jobs differ in length: kind ", rows, ", step ",
                                                   columns.step_size(), ", stage ", columns.stage_size(),
                                                   ", part ", columns.part_size()));
  }
  int64_t step = 0;
  for (int row = 0; row < rows; ++row) {
    step += columns.step(row);
    if (static_cast<uint8_t>(columns.kind()[row]) >= kJobKinds || step < 0 || step >= kMaxSteps ||
        columns.stage(row) >= kMaxStages || columns.part(row) >= kMaxParts) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", row, " is out of range: kind ", static_cast<uint8_t>(columns.kind()[row]),
                       ", step ", step, ", stage ", columns.stage(row), ", part ", columns.part(row)));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::wire
