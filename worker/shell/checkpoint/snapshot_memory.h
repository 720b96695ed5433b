// Gives snapshots of stages their memory, and keeps it for the next ones.
//
// The first use of fresh pages takes many times as long as the copy that they receive, and a rank's thread
// copies while its jobs wait. So a block that a snapshot has left stays here until one of the same size is
// taken. A process takes the same sizes at each snapshot, so it keeps as many bytes as its snapshots had at
// once.
//
// A block is a piece of a MemorySource. If the source is a transport's, other processes of the machine read
// snapshots in place, and keep what they read after this process has gone.
//
// Invariants: blocks are aligned to 4096 bytes; the bytes that are reported are those of all blocks, in use
// or kept. Threads: any. Ownership: a block lives as long as its tensor, which may outlive this, but not the
// source. Failure: ResourceExhausted with the bytes and the source's reason, where there is no memory even
// without the blocks that are kept.
#ifndef WEFT_WORKER_SHELL_CHECKPOINT_SNAPSHOT_MEMORY_H_
#define WEFT_WORKER_SHELL_CHECKPOINT_SNAPSHOT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class SnapshotMemory {
 public:
  // Borrows the source of its blocks.
  explicit SnapshotMemory(MemorySource& source);
  // Frees what is kept.
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Returns a tensor of so many bytes in host memory of no rank's, because it may outlive them all.
  absl::StatusOr<Tensor> Take(size_t bytes);

  // Makes a block of so many bytes and keeps it for Take. Returns what is left to do, on any thread and
  // beside anything: the first use of its pages, which changes no byte. The block may be taken, or gone,
  // meanwhile.
  std::function<void()> Reserve(size_t bytes);

  // Frees what is kept at once, and what is in use when it comes back. Blocks that are taken later are kept.
  void Release();

  // Return the bytes of all blocks, in use or kept, and the most that there have been since Release.
  int64_t bytes() const;
  int64_t peak_bytes() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // each block has a share
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_CHECKPOINT_SNAPSHOT_MEMORY_H_
