// Stores records in memory. They outlive the store where the state is the caller's, as if on a disk: tests
// and the simulated world begin a new coordinator from them.
#ifndef WEFT_COORDINATOR_STORE_MEMORY_STORE_H_
#define WEFT_COORDINATOR_STORE_MEMORY_STORE_H_

#include <memory>
#include <utility>
#include <vector>

#include "coordinator/store/store.h"

namespace weft {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<StoredState> state = std::make_shared<StoredState>())
      : state_(std::move(state)) {}

  absl::StatusOr<StoredState> Load() override;
  absl::Status Commit(const std::vector<Records>& batch) override;

 private:
  const std::shared_ptr<StoredState> state_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_MEMORY_STORE_H_
