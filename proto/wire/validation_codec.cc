#include <cstdint>

#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft::wire {

void Encode(const Validation& validation, v1::Validation* out) {
  out->set_run(validation.run);
  out->set_step(validation.step);
  out->set_samples(validation.samples);
  out->set_all_samples(validation.all_samples);
  out->set_loss(validation.loss);
  out->set_accuracy(validation.accuracy);
  out->set_failure(CleanText(validation.failure, kMaxTextBytes));
}

absl::StatusOr<Validation> Decode(const v1::Validation& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.step", in.step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.all_samples", in.all_samples(), INT64_MAX));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.samples", in.samples(), in.all_samples()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("validation.failure", in.failure(), kMaxTextBytes));
  return Validation{in.run(),
                    static_cast<int32_t>(in.step()),
                    static_cast<int64_t>(in.samples()),
                    static_cast<int64_t>(in.all_samples()),
                    in.loss(),
                    in.accuracy(),
                    PlainText(in.failure(), kMaxTextBytes)};
}

}  // namespace weft::wire
