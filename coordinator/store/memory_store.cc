#include "coordinator/store/memory_store.h"

namespace weft {

absl::StatusOr<StoredState> MemoryStore::Load() {
  if (absl::Status whole = CheckStored(*state_); !whole.ok()) return whole;
  return *state_;
}

absl::Status MemoryStore::Commit(const std::vector<Records>& batch) {
  for (const Records& records : batch) Apply(records, state_.get());
  return absl::OkStatus();
}

}  // namespace weft
