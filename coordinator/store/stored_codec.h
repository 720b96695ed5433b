// Converts records between protobuf (weft/v1/store.proto) and values, and validates them.
//
// Times in the store are of the wall clock, because a machine that starts again begins its monotonic clock
// anew; inside they are of the monotonic one. The caller gives the difference. Failure: DataLoss.
#ifndef WEFT_COORDINATOR_STORE_STORED_CODEC_H_
#define WEFT_COORDINATOR_STORE_STORED_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/records.h"

namespace weft {

std::string EncodeStored(const Submission& submission);
std::string EncodeStored(const AttemptRecord& attempt);
std::string EncodeStored(const RunFigures& figures, int64_t unix_minus_monotonic_ns);
std::string EncodeStored(const StepDone& step, int64_t unix_minus_monotonic_ns);
std::string EncodeStored(const Validation& validation);

absl::StatusOr<Submission> DecodeSubmission(absl::string_view bytes);
absl::StatusOr<AttemptRecord> DecodeAttempt(absl::string_view bytes);
absl::StatusOr<RunFigures> DecodeFigures(absl::string_view bytes, int64_t unix_minus_monotonic_ns);
absl::StatusOr<StepDone> DecodeStep(absl::string_view bytes, int64_t unix_minus_monotonic_ns);
absl::StatusOr<Validation> DecodeValidation(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_STORED_CODEC_H_
