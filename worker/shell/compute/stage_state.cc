#include "worker/shell/compute/stage_state.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

constexpr int64_t kMark = 0x5745'4654'5354'4154;  // "WEFTSTAT"
constexpr size_t kWords = StageState::kHeadElements * sizeof(float) / sizeof(int64_t);
enum Word : size_t {
  kMarkWord,
  kStage,
  kElements,
  kSumStep,
  kSumNext,
  kOptimizerStepsWord,
  kOptimizerBuffers,
  kVersionCount,
  kFirstVersion
};
static_assert(kFirstVersion + StageState::kMaxVersions <= kWords);
using Head = std::array<int64_t, kWords>;

}  // namespace

int64_t StageState::total_elements() const { return optimizer_offset(optimizer_buffers); }

void WriteHead(const StageState& state, float* begin) {
  if (state.versions.size() > StageState::kMaxVersions) std::abort();
  Head head{};
  head[kMarkWord] = kMark;
  head[kStage] = state.stage;
  head[kElements] = state.elements;
  head[kSumStep] = state.sum_step;
  head[kSumNext] = state.sum_next;
  head[kOptimizerStepsWord] = state.optimizer_steps;
  head[kOptimizerBuffers] = state.optimizer_buffers;
  head[kVersionCount] = static_cast<int64_t>(state.versions.size());
  for (size_t i = 0; i < state.versions.size(); ++i) head[kFirstVersion + i] = state.versions[i];
  std::memcpy(begin, head.data(), sizeof head);
}

absl::StatusOr<StageState> ReadHead(const Tensor& tensor, int stage, int64_t elements,
                                    int optimizer_buffers) {
  const auto wrong = [&](const char* what) {
    return absl::DataLossError(
        absl::StrFormat("what came as the state of stage %d, in %d bytes, %s", stage, tensor.bytes, what));
  };
  Head head;
  if (tensor.bytes < sizeof head) return wrong("is too short for its head");
  std::memcpy(head.data(), tensor.data, sizeof head);
  if (head[kMarkWord] != kMark) return wrong("does not begin as one");
  if (head[kStage] != stage) return wrong("is that of another stage");
  if (head[kElements] != elements || head[kOptimizerBuffers] != optimizer_buffers)
    return wrong("has other sizes than the stage");
  if (head[kVersionCount] < 1 || head[kVersionCount] > StageState::kMaxVersions)
    return wrong("has no weights, or too many versions of them");
  StageState state;
  state.stage = stage;
  state.elements = elements;
  state.sum_step = static_cast<int>(head[kSumStep]);
  state.sum_next = static_cast<int>(head[kSumNext]);
  state.optimizer_steps = head[kOptimizerStepsWord];
  state.optimizer_buffers = optimizer_buffers;
  for (int64_t i = 0; i < head[kVersionCount]; ++i)
    state.versions.push_back(static_cast<int>(head[kFirstVersion + static_cast<size_t>(i)]));
  if (tensor.bytes != static_cast<size_t>(state.total_elements()) * sizeof(float))
    return wrong("is not as long as its head says");
  return state;
}

}  // namespace weft
