#include "worker/shell/loop/awaited_tensors.h"

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weft {

void AwaitedTensors::Poll(std::vector<Awaited>* ready) {
  // The outputs of one job have one fence, which is asked once.
  const Fence* asked = nullptr;
  absl::StatusOr<bool> reached = false;
  size_t waiting = 0;
  for (Awaited& a : awaited_) {
    if (a.tensor.ready.get() != asked) {
      asked = a.tensor.ready.get();
      reached = a.tensor.ready->Reached();
    }
    if (reached.ok() && !*reached) {
      if (&awaited_[waiting] != &a) awaited_[waiting] = std::move(a);
      ++waiting;
      continue;
    }
    if (!reached.ok()) {
      a.status = absl::Status(reached.status().code(),
                              absl::StrCat(Describe(a.key), ": ", reached.status().message()));
    }
    ready->push_back(std::move(a));
  }
  awaited_.resize(waiting);
}

}  // namespace weft
