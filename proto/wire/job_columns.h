// Packs jobs as columns and unpacks them: about ten bytes and a few nanoseconds a job. Part of proto/wire.
#ifndef WEFT_PROTO_WIRE_JOB_COLUMNS_H_
#define WEFT_PROTO_WIRE_JOB_COLUMNS_H_

#include <vector>

#include "absl/status/status.h"
#include "schedules/job.h"
#include "weft/v1/report.pb.h"

namespace weft::wire {

// Packs jobs, one row each.
class JobColumnsWriter {
 public:
  // Clears `columns`, which holds `count` rows after as many calls of Add.
  JobColumnsWriter(int count, v1::JobColumns* columns);
  void Add(const Job& job);

 private:
  v1::JobColumns& columns_;
  int32_t step_ = 0;
  int row_ = 0;
};

// Calls `add(row, job)` for each row. InvalidArgument if columns differ in length or a value is out of range.
absl::Status CheckColumns(const v1::JobColumns& columns);

template <typename Add>
absl::Status ReadJobs(const v1::JobColumns& columns, Add add) {
  if (absl::Status s = CheckColumns(columns); !s.ok()) return s;
  int32_t step = 0;
  const int rows = static_cast<int>(columns.kind().size());
  for (int row = 0; row < rows; ++row) {
    step += columns.step(row);
    const JobKind kind = static_cast<JobKind>(columns.kind()[row]);
    const int32_t part = static_cast<int32_t>(columns.part(row));
    const bool compute = HasMicrobatch(kind);
    add(row,
        Job{step, static_cast<int32_t>(columns.stage(row)), compute ? part : -1, compute ? 0 : part, kind});
  }
  return absl::OkStatus();
}

}  // namespace weft::wire

#endif  // WEFT_PROTO_WIRE_JOB_COLUMNS_H_
