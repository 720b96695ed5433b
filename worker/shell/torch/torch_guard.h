// Turns LibTorch's exceptions into a Status at the border of its adapter. Private to the adapter of LibTorch.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_GUARD_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_GUARD_H_

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_layers.h"

namespace weft {

// Adds the failed operation to a failure, which keeps its payloads.
inline absl::Status While(absl::string_view what, const absl::Status& status) {
  absl::Status failure(status.code(), absl::StrCat(what, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { failure.SetPayload(url, payload); });
  return failure;
}

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// A scope of RankDevice::Charge. If an exception ends it, Guarded can name the class of the memory.
class Charged {
 public:
  Charged(RankDevice& device, MemoryClass memory_class, Tallied tallied = Tallied::kNo);
  ~Charged();
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;

 private:
  const std::unique_ptr<RankDevice::Scope> scope_;
  const MemoryClass memory_class_;
  const int exceptions_;  // number under way when the scope began
};

// Throws a failure as LibTorch would: c10::OutOfMemoryError for memory, else c10::Error.
void ThrowUnlessOk(const absl::Status& status);

// Returns LibTorch's message about memory that it did not get, in the words of RankDevice: with the class.
std::string OutOfMemoryText(const c10::OutOfMemoryError& error);

// Adds to a ResourceExhausted what else the rank has in memory, and what would make it fit.
absl::Status WithMemory(const absl::Status& exhausted, const BytesByClass& alive);

// Runs `f`, which returns a Status or StatusOr, turns LibTorch's exceptions into a Status, and begins a
// failure's message with `what()`.
template <typename What, typename F>
auto Guarded(What what, F f) -> decltype(f()) {
  try {
    PrepareThread();
    decltype(f()) result = f();
    if (!result.ok()) return While(what(), StatusOf(result));
    return result;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(what(), ": ", OutOfMemoryText(e)));
  } catch (const c10::Error& e) {
    return TorchError(what(), e.what_without_backtrace());
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what(), ": LibTorch: ", e.what()));
  }
}

// Runs the calls of one rank at the border: prepares the thread for the rank's device, turns LibTorch's
// exceptions into a Status, and says what else the rank has in memory where that is out. Any thread.
class RankGuard {
 public:
  // `prepare_thread` is called on every thread that computes, before it does. `device` outlives this.
  RankGuard(const RankDevice& device, std::function<void()> prepare_thread)
      : device_(device), prepare_thread_(std::move(prepare_thread)) {}

  void PrepareThread() const { prepare_thread_(); }

  // Runs `f` as Guarded does.
  template <typename What, typename F>
  auto Run(What what, F f) const -> decltype(f()) {
    decltype(f()) result = Guarded(what, [&] {
      prepare_thread_();
      return f();
    });
    if (absl::IsResourceExhausted(StatusOf(result)))
      return WithMemory(StatusOf(result), device_.live_bytes());
    return result;
  }

 private:
  const RankDevice& device_;
  const std::function<void()> prepare_thread_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_GUARD_H_
