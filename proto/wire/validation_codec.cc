#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/plain_text.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"

namespace weft::wire {
namespace {

constexpr char kAccuracy[] = "accuracy";  // has a field of its own, which older versions read
constexpr uint64_t kMaxMetrics = 64;

}  // namespace

void Encode(const Validation& validation, v1::Validation* out) {
  out->set_run(validation.run);
  out->set_step(validation.step);
  out->set_samples(validation.samples);
  out->set_all_samples(validation.all_samples);
  out->set_loss(validation.loss);
  for (const auto& [name, value] : validation.metrics) {
    if (name == kAccuracy) {
      out->set_accuracy(value);
    } else {
      (*out->mutable_metrics())[name] = value;
    }
  }
  out->set_failure(CleanText(validation.failure, kMaxTextBytes));
}

absl::StatusOr<Validation> Decode(const v1::Validation& in) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.step", in.step(), kMaxSteps));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.all_samples", in.all_samples(), INT64_MAX));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("validation.samples", in.samples(), in.all_samples()));
  WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("validation.failure", in.failure(), kMaxTextBytes));
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost("the number of validation.metrics", in.metrics().size(), kMaxMetrics));
  std::map<std::string, double> metrics;
  if (in.has_accuracy()) metrics[kAccuracy] = in.accuracy();
  for (const auto& [name, value] : in.metrics()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckBytes("validation.metrics", name, kMaxNameBytes + 1));
    metrics[PlainText(name, kMaxNameBytes + 1)] = value;
  }
  return Validation{in.run(),
                    static_cast<int32_t>(in.step()),
                    static_cast<int64_t>(in.samples()),
                    static_cast<int64_t>(in.all_samples()),
                    in.loss(),
                    std::move(metrics),
                    PlainText(in.failure(), kMaxTextBytes)};
}

}  // namespace weft::wire
