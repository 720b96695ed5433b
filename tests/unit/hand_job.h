// A launched job whose end a test decides.
#ifndef WEFT_TESTS_UNIT_HAND_JOB_H_
#define WEFT_TESTS_UNIT_HAND_JOB_H_

#include "absl/status/statusor.h"
#include "worker/shell/compute/compute.h"

namespace weft {

class HandJob final : public LaunchedJob {
 public:
  absl::StatusOr<bool> Reached() override { return answer; }
  Figures figures() override { return {}; }
  absl::StatusOr<bool> answer = false;
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_HAND_JOB_H_
