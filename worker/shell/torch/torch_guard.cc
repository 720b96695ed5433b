#include "worker/shell/torch/torch_guard.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace weft {
namespace {

// The class of the innermost scope that the exception under way has ended on this thread.
thread_local std::optional<MemoryClass> failed_class;

}  // namespace

Charged::Charged(RankDevice& device, MemoryClass memory_class, Tallied tallied)
    : scope_(device.Charge(memory_class, tallied)),
      memory_class_(memory_class),
      exceptions_(std::uncaught_exceptions()) {}

Charged::~Charged() {
  if (std::uncaught_exceptions() > exceptions_ && !failed_class.has_value()) failed_class = memory_class_;
}

void ThrowUnlessOk(const absl::Status& status) {
  if (absl::IsResourceExhausted(status))
    TORCH_CHECK_WITH(OutOfMemoryError, false, std::string(status.message()));
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

std::string OutOfMemoryText(const c10::OutOfMemoryError& error) {
  std::string text = error.what_without_backtrace();
  const std::optional<MemoryClass> memory_class = std::exchange(failed_class, std::nullopt);
  // A RankDevice's own messages have bytes and class.
  if (!memory_class.has_value() || absl::StrContains(text, " bytes for ")) return text;
  return absl::StrCat("for ", MemoryClassName(*memory_class), ": ", text);
}

absl::Status WithMemory(const absl::Status& exhausted, const BytesByClass& alive) {
  std::string list;
  for (int c = 0; c < kMemoryClasses; ++c) {
    if (alive[c] == 0) continue;
    absl::StrAppendFormat(&list, "%s%d of %s", list.empty() ? "" : ", ", alive[c],
                          MemoryClassName(static_cast<MemoryClass>(c)));
  }
  return absl::Status(
      exhausted.code(),
      absl::StrCat("out of memory: ", exhausted.message(), "; the rank also has ",
                   list.empty() ? "none" : list,
                   " in bytes; to fit, use fewer samples per micro-batch (a larger train.microbatches), "
                   "activations: recompute or offload, more stages on more ranks, or a budget (memory) that "
                   "forwards wait for"));
}

}  // namespace weft
