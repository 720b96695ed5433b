#include "proto/wire/span_columns.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/job_columns.h"
#include "proto/wire/limits.h"

namespace weft::wire {
namespace {

constexpr int64_t kMaxWireBytes = int64_t{1} << 53;  // exact as a double

// Adds a difference to a time of a column. Returns false if that leaves the range of times.
bool Advance(int64_t difference, int64_t* time) {
  if (difference > kMaxWireTime || difference < -kMaxWireTime) return false;
  *time += difference;
  return *time >= 0 && *time <= kMaxWireTime;
}

absl::Status OutOfRange(absl::string_view column, int row) {
  return absl::InvalidArgumentError(absl::StrCat(column, " of row ", row, " is out of range"));
}

absl::Status CheckLengths(absl::string_view what, size_t rows, std::initializer_list<int> columns) {
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("the number of ", what), rows, kMaxJobs));
  const bool equal = std::all_of(columns.begin(), columns.end(),
                                 [rows](int size) { return static_cast<size_t>(size) == rows; });
  return equal ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat("columns of ", what, " differ in length"));
}

}  // namespace

void Encode(const std::vector<IdleSpan>& spans, v1::IdleSpans* out) {
  out->Clear();
  int64_t start = 0;
  for (const IdleSpan& span : spans) {
    out->mutable_cause()->push_back(static_cast<char>(span.cause));
    out->add_start_ns(span.start_ns - start);
    out->add_duration_ns(static_cast<uint64_t>(std::max<int64_t>(0, span.end_ns - span.start_ns)));
    start = span.start_ns;
  }
}

void Encode(const std::vector<TransferSpan>& spans, v1::TransferSpans* out) {
  out->Clear();
  JobColumnsWriter consumers(static_cast<int>(spans.size()), out->mutable_consumers());
  int64_t wanted = 0, made = 0;
  for (const TransferSpan& span : spans) {
    consumers.Add(span.consumer);
    out->add_from(static_cast<uint32_t>(span.from));
    out->mutable_tensor()->push_back(static_cast<char>(span.tensor));
    out->add_wanted_ns(span.wanted_ns - wanted);
    out->add_duration_ns(static_cast<uint64_t>(std::max<int64_t>(0, span.arrived_ns - span.wanted_ns)));
    out->add_made_ns(span.made_ns - made);
    out->add_bytes(static_cast<uint64_t>(span.bytes));
    wanted = span.wanted_ns;
    made = span.made_ns;
  }
}

absl::Status Decode(const v1::IdleSpans& in, std::vector<IdleSpan>* spans) {
  WEFT_WIRE_RETURN_IF_ERROR(
      CheckLengths("idle intervals", in.cause().size(), {in.start_ns_size(), in.duration_ns_size()}));
  int64_t start = 0;
  for (int row = 0; row < in.start_ns_size(); ++row) {
    const auto cause = static_cast<uint8_t>(in.cause()[row]);
    const bool valid = cause < kIdleCauses && Advance(in.start_ns(row), &start) &&
                       in.duration_ns(row) <= static_cast<uint64_t>(kMaxWireTime);
    if (!valid) return OutOfRange("idle intervals: cause or time", row);
    spans->push_back(
        {static_cast<IdleCause>(cause), start, start + static_cast<int64_t>(in.duration_ns(row))});
  }
  return absl::OkStatus();
}

absl::Status Decode(const v1::TransferSpans& in, std::vector<TransferSpan>* spans) {
  const size_t rows = in.tensor().size();
  const bool has_bytes = in.bytes_size() > 0;
  WEFT_WIRE_RETURN_IF_ERROR(CheckLengths(
      "transfers", rows,
      {static_cast<int>(in.consumers().kind().size()), in.from_size(), in.wanted_ns_size(),
       in.duration_ns_size(), in.made_ns_size(), has_bytes ? in.bytes_size() : static_cast<int>(rows)}));
  spans->resize(rows);
  WEFT_WIRE_RETURN_IF_ERROR(
      ReadJobs(in.consumers(), [&](int row, const Job& job) { (*spans)[row].consumer = job; }));
  int64_t wanted = 0, made = 0;
  for (int row = 0; row < static_cast<int>(rows); ++row) {
    const auto tensor = static_cast<uint8_t>(in.tensor()[row]);
    const bool valid = tensor < kTensorKinds && in.from(row) < static_cast<uint32_t>(kMaxRanks) &&
                       in.duration_ns(row) <= static_cast<uint64_t>(kMaxWireTime) &&
                       (!has_bytes || in.bytes(row) <= static_cast<uint64_t>(kMaxWireBytes)) &&
                       Advance(in.wanted_ns(row), &wanted) && Advance(in.made_ns(row), &made);
    if (!valid) return OutOfRange("transfers: tensor, rank, bytes or time", row);
    TransferSpan& span = (*spans)[row];
    span.from = static_cast<Rank>(in.from(row));
    span.tensor = static_cast<TensorKind>(tensor);
    span.wanted_ns = wanted;
    span.made_ns = made;
    span.arrived_ns = wanted + static_cast<int64_t>(in.duration_ns(row));
    if (has_bytes) span.bytes = static_cast<int64_t>(in.bytes(row));
  }
  return absl::OkStatus();
}

}  // namespace weft::wire
