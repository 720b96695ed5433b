#include "proto/session/job_hashes.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr absl::string_view kNames[] = {"activation",   "input_gradient", "gradient",       "running_sum",
                                        "gradient_sum", "weights",        "initial_weights"};
static_assert(std::size(kNames) == kHashedValues);

// A hash, or a number's bits, as 16 hexadecimal digits: JSON has no whole numbers of 64 bits.
auto Digits(uint64_t bits) { return absl::Hex(bits, absl::kZeroPad16); }

void AppendHash(const ValueHash& h, std::string* line) {
  absl::StrAppend(line, "[\"", HashedValueName(h.value), "\",");
  if (h.received) absl::StrAppend(line, h.source, ",");
  if (h.received || h.parts != 1) absl::StrAppend(line, h.part, ",", h.parts, ",");
  absl::StrAppend(line, "\"", Digits(h.hash), "\"]");
}

void AppendHashes(const JobHashes& job, bool received, absl::string_view key, std::string* line) {
  bool any = false;
  for (const ValueHash& h : job.hashes) {
    if (h.received != received) continue;
    absl::StrAppend(line, any ? "," : absl::StrCat(",\"", key, "\":["));
    AppendHash(h, line);
    any = true;
  }
  if (any) line->push_back(']');
}

void AppendNumber(absl::string_view key, std::optional<double> number, std::string* line) {
  if (number.has_value())
    absl::StrAppend(line, ",\"", key, "\":\"", Digits(std::bit_cast<uint64_t>(*number)), "\"");
}

}  // namespace

absl::string_view HashedValueName(HashedValue value) { return kNames[static_cast<int>(value)]; }

std::optional<HashedValue> HashedValueNamed(absl::string_view name) {
  for (int i = 0; i < kHashedValues; ++i) {
    if (kNames[i] == name) return static_cast<HashedValue>(i);
  }
  return std::nullopt;
}

std::string HashLine(const JobHashes& job) {
  std::string line = absl::StrCat("{\"step\":", job.job.step, ",\"stage\":", job.job.stage);
  if (HasMicrobatch(job.job.kind)) {
    absl::StrAppend(&line, ",\"microbatch\":", job.job.microbatch);
  } else {
    absl::StrAppend(&line, ",\"member\":", job.job.member);
  }
  absl::StrAppend(&line, ",\"kind\":\"", JobKindName(job.job.kind), "\",\"rank\":", job.rank,
                  ",\"process\":", job.process);
  AppendNumber("loss", job.loss, &line);
  AppendNumber("gradient_norm", job.gradient_norm, &line);
  AppendHashes(job, /*received=*/false, "made", &line);
  AppendHashes(job, /*received=*/true, "received", &line);
  line.push_back('}');
  return line;
}

}  // namespace weft
