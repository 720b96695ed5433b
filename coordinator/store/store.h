// Keeps what the coordinator has decided, so that a coordinator that is started again loses no run.
//
// The coordinator writes in front: it makes records durable before it acts on them (coordinator/core/
// records.h). A store takes them in batches and reads them once, at the start. StoreWriter (store_writer.h)
// gathers the batches on a thread of its own.
//
// Two implementations: SqliteStore, one file; EtcdStore, for coordinators that stand by.
//
// Invariants: whatever a crash leaves of a batch keeps the invariants of records.h; batches are found again
// in their order; Load returns exactly what was committed, or fails. Threads: one at a time. Failure:
// ResourceExhausted means that the store has no room, and that Commit may be called again with the batch;
// after any other failure the store cannot be used any more, and the sentence says how to restore it.
#ifndef WEFT_COORDINATOR_STORE_STORE_H_
#define WEFT_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/records.h"

namespace weft {

// The format of what is stored. Format 1 had no rows of attempts: such a store is one of this format too,
// without any.
inline constexpr int32_t kStoreVersion = 2, kOldestStoreVersion = 1;

// Refuses a store of a format that this release does not know (FailedPrecondition), and says how to go on.
absl::Status UnknownFormat(absl::string_view store, absl::string_view format);

class Store {
 public:
  virtual ~Store() = default;

  // Returns all that was committed. DataLoss if it is damaged; FailedPrecondition if it is of a later format.
  virtual absl::StatusOr<StoredState> Load() = 0;
  // Makes the batch durable.
  virtual absl::Status Commit(const std::vector<Records>& batch) = 0;
  // Returns OK if there is room for new runs; tries to make some. ResourceExhausted says what is short.
  virtual absl::Status Room() { return absl::OkStatus(); }
};

// Applies records to what a store holds, in memory. Both implementations and their tests mean this by
// "stored".
void Apply(const Records& records, StoredState* state);

// Returns OK if the state keeps the invariants of records.h; DataLoss with the run and what is wrong.
absl::Status CheckStored(const StoredState& state);

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_STORE_H_
