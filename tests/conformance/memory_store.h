// Stores records in memory: what the conformance suite of stores compares the others with. They outlive the
// store where the state is the caller's, as if on a disk.
#ifndef WEFT_TESTS_CONFORMANCE_MEMORY_STORE_H_
#define WEFT_TESTS_CONFORMANCE_MEMORY_STORE_H_

#include <memory>
#include <utility>
#include <vector>

#include "coordinator/store/store.h"

namespace weft {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<StoredState> state) : state_(std::move(state)) {}

  absl::StatusOr<StoredState> Load() override {
    if (absl::Status whole = CheckStored(*state_); !whole.ok()) return whole;
    return *state_;
  }
  absl::Status Commit(const std::vector<Records>& batch) override {
    for (const Records& records : batch) Apply(records, state_.get());
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<StoredState> state_;
};

}  // namespace weft

#endif  // WEFT_TESTS_CONFORMANCE_MEMORY_STORE_H_
