// Measures the bytes that one job of a rank takes of activations and buffers, beyond those that were there
// when it began.
//
// The bytes that a job allocates follow from its shapes, so the figures of one are those of all jobs of its
// kind and stage. They say what a job takes only where none runs beside it on the rank. Not thread-safe.
#ifndef WEFT_WORKER_SHELL_COMPUTE_JOB_METER_H_
#define WEFT_WORKER_SHELL_COMPUTE_JOB_METER_H_

#include <algorithm>
#include <cstdint>

#include "schedules/job_bytes.h"

namespace weft {

class JobMeter {
 public:
  // Begins with the bytes that are alive now.
  void Begin(int64_t buffers, int64_t activations) {
    first_buffers_ = most_buffers_ = buffers;
    first_ = most_ = buffers + activations;
  }
  // Notes the bytes that are alive now.
  void Note(int64_t buffers, int64_t activations) {
    most_buffers_ = std::max(most_buffers_, buffers);
    most_ = std::max(most_, buffers + activations);
  }
  // Returns the job's figures up to now.
  JobBytes Read(int64_t buffers, int64_t activations) const {
    const int64_t now = buffers + activations;
    return {first_,       most_buffers_ - first_buffers_, most_ - first_, buffers - first_buffers_,
            now - first_, std::max(most_, now) - now};
  }

 private:
  int64_t first_buffers_ = 0, most_buffers_ = 0;
  int64_t first_ = 0, most_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_JOB_METER_H_
