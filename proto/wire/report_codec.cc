#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"
#include "proto/wire/session_codec.h"
#include "proto/wire/span_columns.h"

namespace weft::wire {
namespace {

template <typename Value, typename Map>
void EncodeMap(const std::map<std::string, Value>& from, Map* to) {
  to->clear();
  for (const auto& [key, value] : from) (*to)[key] = value;
}

bool IsKey(const std::string& key) {
  bool valid = !key.empty() && key.size() <= kMaxNameBytes;
  for (char c : key) valid &= (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  return valid;
}

template <typename Value, typename Map>
absl::Status DecodeMap(absl::string_view field, const Map& from, std::map<std::string, Value>* to) {
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckAtMost(absl::StrCat("the number of entries of ", field), from.size(), kMaxReportKeys));
  for (const auto& [key, value] : from) {
    if (!IsKey(key)) return absl::InvalidArgumentError(absl::StrCat(field, " has a key that is not a name"));
    if (!std::isfinite(static_cast<double>(value))) {
      return absl::InvalidArgumentError(absl::StrCat(field, "[", key, "] is not a number"));
    }
    to->emplace(key, value);
  }
  return absl::OkStatus();
}

absl::StatusOr<JobBytesOfStage> DecodeJobBytes(const v1::JobBytes& in) {
  JobBytesOfStage job;
  const std::optional<JobKind> kind = JobKindOfName(in.kind());
  if (!kind.has_value()) return absl::InvalidArgumentError("report.job_bytes has an unknown kind of job");
  job.kind = *kind;
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("report.job_bytes: stage", in.stage(), kMaxStages - 1));
  job.stage = static_cast<int32_t>(in.stage());
  if (in.before() < 0 || in.buffers() < 0 || in.most() < 0 || in.passing() < 0)
    return absl::InvalidArgumentError("report.job_bytes has a negative size");
  job.bytes = {in.before(), in.buffers(), in.most(), in.left_buffers(), in.left(), in.passing()};
  return job;
}

}  // namespace

void Encode(const RankReport& report, v1::RankReport* out) {
  out->set_rank(report.rank);
  EncodeMap(report.busy_seconds, out->mutable_busy_seconds());
  EncodeMap(report.idle_seconds, out->mutable_idle_seconds());
  for (const auto& [stage, bytes] : report.activation_bytes)
    (*out->mutable_activation_bytes())[stage] = bytes;
  for (const JobBytesOfStage& job : report.job_bytes) {
    v1::JobBytes* const to = out->add_job_bytes();
    to->set_kind(std::string(JobKindName(job.kind)));
    to->set_stage(job.stage);
    to->set_before(job.bytes.before);
    to->set_buffers(job.bytes.buffers);
    to->set_most(job.bytes.most);
    to->set_left_buffers(job.bytes.left_buffers);
    to->set_left(job.bytes.left);
    to->set_passing(job.bytes.passing);
  }
  EncodeMap(report.live_bytes, out->mutable_live_bytes());
  EncodeMap(report.peak_bytes, out->mutable_peak_bytes());
  EncodeMap(report.bytes_sent, out->mutable_bytes_sent());
  EncodeMap(report.bytes_received, out->mutable_bytes_received());
  out->set_most_bytes(report.most_bytes);
  out->set_peak_activations(report.peak_activations);
  out->set_peak_weight_versions(report.peak_weight_versions);
  out->set_wall_seconds(report.wall_seconds);
  EncodeMap(report.gpu, out->mutable_gpu());
  if (!report.idle_spans.empty()) Encode(report.idle_spans, out->mutable_idle_spans());
  if (!report.transfer_spans.empty()) Encode(report.transfer_spans, out->mutable_transfer_spans());
}

absl::StatusOr<RankReport> Decode(const v1::RankReport& in) {
  RankReport report;
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("report.rank", in.rank(), kMaxRanks - 1));
  report.rank = static_cast<Rank>(in.rank());
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.busy_seconds", in.busy_seconds(), &report.busy_seconds));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.idle_seconds", in.idle_seconds(), &report.idle_seconds));
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of entries of report.activation_bytes",
                                        in.activation_bytes().size(), kMaxStages));
  for (const auto& [stage, bytes] : in.activation_bytes()) {
    WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("report.activation_bytes: stage", stage, kMaxStages - 1));
    if (bytes < 0) return absl::InvalidArgumentError("report.activation_bytes has a negative size");
    report.activation_bytes[static_cast<int32_t>(stage)] = bytes;
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of entries of report.job_bytes", in.job_bytes_size(),
                                        int64_t{kJobKinds} * kMaxStages));
  for (const v1::JobBytes& job : in.job_bytes()) {
    auto of_stage = DecodeJobBytes(job);
    if (!of_stage.ok()) return of_stage.status();
    report.job_bytes.push_back(*std::move(of_stage));
  }
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.live_bytes", in.live_bytes(), &report.live_bytes));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.peak_bytes", in.peak_bytes(), &report.peak_bytes));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.bytes_sent", in.bytes_sent(), &report.bytes_sent));
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.bytes_received", in.bytes_received(), &report.bytes_received));
  if (in.most_bytes() < 0) return absl::InvalidArgumentError("report.most_bytes is negative");
  report.most_bytes = in.most_bytes();
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("report.peak_activations", in.peak_activations(), INT32_MAX));
  report.peak_activations = static_cast<int32_t>(in.peak_activations());
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("report.peak_weight_versions", in.peak_weight_versions(), INT32_MAX));
  report.peak_weight_versions = static_cast<int32_t>(in.peak_weight_versions());
  if (!std::isfinite(in.wall_seconds()))
    return absl::InvalidArgumentError("report.wall_seconds is not a number");
  report.wall_seconds = in.wall_seconds();
  WEFT_WIRE_RETURN_IF_ERROR(DecodeMap("report.gpu", in.gpu(), &report.gpu));
  WEFT_WIRE_RETURN_IF_ERROR(Decode(in.idle_spans(), &report.idle_spans));
  WEFT_WIRE_RETURN_IF_ERROR(Decode(in.transfer_spans(), &report.transfer_spans));
  return report;
}

}  // namespace weft::wire
