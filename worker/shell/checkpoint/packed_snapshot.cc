#include "worker/shell/checkpoint/packed_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/require.h"

namespace weft {
namespace {

constexpr int64_t kSnapshotMark = 0x7765'6674'636f'7079;  // "weftcopy"

struct SnapshotHead {
  int64_t mark = kSnapshotMark;
  int64_t stage = 0, version = 0, optimizer_steps = 0;
  int64_t part = 0, parts = 1;
  int64_t flats = 0, elements = 0;  // number of the buffers, and the size of each
};
static_assert(sizeof(SnapshotHead) == kSnapshotHeadBytes);

int64_t BytesOf(const SnapshotHead& head) {
  return static_cast<int64_t>(kSnapshotHeadBytes + sizeof(float) * head.flats * head.elements);
}

// A stage in the packed snapshots of its parts.
class PackedStage final : public KeptStage {
 public:
  struct Part {
    SnapshotHead head;
    SliceBounds bounds;
    Tensor packed;
  };
  PackedStage(std::vector<std::string> buffers, std::vector<Part> parts)
      : buffers_(std::move(buffers)), parts_(std::move(parts)) {}

  int64_t optimizer_steps() const override { return parts_.front().head.optimizer_steps; }
  void CopyNewest(SliceBounds range, float* out) const override { Copy(0, range, out); }
  void CopyBuffer(const std::string& name, SliceBounds range, float* out) const override {
    const auto found = std::find(buffers_.begin(), buffers_.end(), name);
    Require(found != buffers_.end(), "only buffers of the state are asked for");
    Copy(1 + (found - buffers_.begin()), range, out);
  }

 private:
  void Copy(int64_t flat, SliceBounds range, float* out) const {
    std::fill(out, out + (range.end - range.begin), 0.0f);
    for (const Part& part : parts_) {
      const int64_t begin = std::max(range.begin, part.bounds.begin),
                    end = std::min(range.end, part.bounds.end);
      if (begin >= end) continue;
      const auto* values =
          reinterpret_cast<const float*>(static_cast<const char*>(part.packed.data) + kSnapshotHeadBytes);
      std::memcpy(out + (begin - range.begin),
                  values + flat * part.head.elements + (begin - part.bounds.begin),
                  static_cast<size_t>(end - begin) * sizeof(float));
    }
  }

  const std::vector<std::string> buffers_;
  const std::vector<Part> parts_;
};

}  // namespace

absl::StatusOr<Tensor> PackSnapshot(const StageSnapshot& s, SnapshotMemory& memory) {
  const SnapshotHead head{kSnapshotMark,
                          s.layout.stage,
                          s.version,
                          s.optimizer_steps,
                          s.part,
                          s.parts,
                          static_cast<int64_t>(s.flats.size()),
                          static_cast<int64_t>(s.flats.front().bytes / sizeof(float))};
  Tensor packed = s.block;
  if (packed.owner == nullptr) {
    absl::StatusOr<Tensor> block = memory.Take(static_cast<size_t>(BytesOf(head)));
    if (!block.ok()) return block;
    packed = *std::move(block);
    char* next = static_cast<char*>(packed.data) + kSnapshotHeadBytes;
    for (const Tensor& flat : s.flats) {
      std::memcpy(next, flat.data, flat.bytes);
      next += flat.bytes;
    }
  }
  std::memcpy(packed.data, &head, sizeof(head));
  return packed;
}

absl::StatusOr<std::shared_ptr<const KeptStage>> ReadPackedStage(const RunSpec& run, const StateRule& rule,
                                                                 int stage,
                                                                 const std::vector<Tensor>& parts) {
  const StageLayout layout = LayOutStage(run, stage);
  std::vector<std::string> buffers = StateBuffers(rule, run.first_step());
  std::vector<PackedStage::Part> read;
  for (const Tensor& packed : parts) {
    PackedStage::Part part;
    bool fits = packed.bytes >= kSnapshotHeadBytes && packed.place == MemoryPlace::kHost;
    if (fits) {
      std::memcpy(&part.head, packed.data, sizeof(part.head));
      const SnapshotHead& h = part.head;
      fits = h.mark == kSnapshotMark && h.stage == stage && h.version == run.first_step() && h.part >= 0 &&
             h.part < h.parts && h.flats == static_cast<int64_t>(1 + buffers.size());
    }
    if (fits) {
      part.bounds = part.head.parts == 1 ? SliceBounds{0, layout.elements}
                                         : SliceOf(layout.elements, static_cast<int>(part.head.part),
                                                   static_cast<int>(part.head.parts));
      fits = part.head.elements == part.bounds.end - part.bounds.begin &&
             static_cast<int64_t>(packed.bytes) == BytesOf(part.head);
    }
    if (!fits) {
      return absl::DataLossError(
          absl::StrFormat("what a process kept in memory of stage %d is not its state behind step %d", stage,
                          run.first_step()));
    }
    part.packed = packed;
    read.push_back(std::move(part));
  }
  if (read.empty()) return absl::DataLossError(absl::StrFormat("no process kept stage %d in memory", stage));
  return std::make_shared<const PackedStage>(std::move(buffers), std::move(read));
}

}  // namespace weft
