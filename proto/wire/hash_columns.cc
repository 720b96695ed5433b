#include "proto/wire/hash_columns.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"

namespace weft::wire {
namespace {

constexpr uint8_t kReceived = 0x80;

}  // namespace

void AddHashes(int row, const std::vector<ValueHash>& hashes, v1::Completions* out) {
  for (const ValueHash& h : hashes) {
    out->add_hash_row(static_cast<uint32_t>(row));
    out->mutable_hash_value()->push_back(
        static_cast<char>(static_cast<uint8_t>(h.value) | (h.received ? kReceived : 0)));
    out->add_hash_source(h.source);
    out->add_hash_part(static_cast<uint32_t>(h.part));
    out->add_hash_parts(static_cast<uint32_t>(h.parts));
    out->add_hash(h.hash);
  }
}

absl::Status ReadHashes(const v1::Completions& in, std::vector<Completion>* jobs) {
  const int rows = in.hash_size();
  if (in.hash_row_size() != rows || static_cast<int>(in.hash_value().size()) != rows ||
      in.hash_source_size() != rows || in.hash_part_size() != rows || in.hash_parts_size() != rows) {
    return absl::InvalidArgumentError("completions: columns of hashes differ in length");
  }
  WEFT_WIRE_RETURN_IF_ERROR(CheckAtMost("the number of hashes", rows, kMaxHashes));
  uint32_t before = 0;
  for (int i = 0; i < rows; ++i) {
    const uint32_t row = in.hash_row(i), part = in.hash_part(i), parts = in.hash_parts(i);
    const auto code = static_cast<uint8_t>(in.hash_value()[i]);
    const int value = code & ~kReceived, source = in.hash_source(i);
    if (row < before || row >= jobs->size() || value >= kHashedValues || part >= parts || parts > kMaxParts ||
        source < -1 || source >= kMaxSteps) {
      return absl::InvalidArgumentError(absl::StrCat("completions: hash ", i, " is out of range: job ", row,
                                                     ", value ", value, ", source ", source, ", part ", part,
                                                     " of ", parts));
    }
    before = row;
    (*jobs)[row].hashes.push_back({static_cast<HashedValue>(value), (code & kReceived) != 0, source,
                                   static_cast<int32_t>(part), static_cast<int32_t>(parts), in.hash(i)});
  }
  return absl::OkStatus();
}

}  // namespace weft::wire
