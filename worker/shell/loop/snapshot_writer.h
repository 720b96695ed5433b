// Writes snapshots of stages to their place, and seals checkpoints, on threads of its own beside the
// process's work. A place is a checkpoint's folder, or this process's memory (kept_copies.h).
//
// A snapshot of a step is made of pieces, one for each stage or slice that this process saves. They come as
// the ranks' updates end, and are begun in the order in which they came. Two are written at a time, so that
// one is copied while the disk has the other: a sync waits for the disk alone. When all pieces of a step are
// in their place, or one cannot be, that is reported to the owner once; pieces that come after a failure are
// dropped. The coordinator decides how many snapshots there may be at a time
// (coordinator/core/checkpoints.h), which bounds the queue.
//
// Threads: any may call; `done` is called on a thread of the writer without a lock, and may call back. A
// thread starts when there is work and the others are busy. Ownership: written data is shared with nobody
// else. Failure: is reported, with the file and the reason; nothing else stops.
#ifndef WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITER_H_
#define WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/checkpoint/checkpoint.h"

namespace weft {

class SnapshotWriter {
 public:
  struct Done {
    uint64_t run = 0;
    int step = 0;
    bool sealed = false;  // true for a Seal, false for the pieces
    std::string failure;
  };
  // `begin_thread`: called once on each thread, before any task. Pieces of a device ask it on these threads
  // whether they are there.
  explicit SnapshotWriter(std::function<void(const Done&)> done,
                          std::function<void()> begin_thread = nullptr);
  // Ends as End does, within three seconds.
  ~SnapshotWriter();

  // Forgets what waits, and waits until `until` for what is being written. False if a file system holds a
  // thread for longer, which is then left to itself. No snapshot may be added afterwards.
  bool End(int64_t until);

  // Writes a piece to its place. Its bytes are there. Called on two threads at a time.
  using Place = std::function<absl::Status(const StageSnapshot& piece)>;
  // Announces so many pieces of the step.
  void Expect(uint64_t run, int step, int pieces, Place place);
  // Writes a piece of a step that was announced and has not failed; drops any other.
  void Write(uint64_t run, int step, absl::StatusOr<std::shared_ptr<const StageSnapshot>> piece);
  void Seal(uint64_t run, int step, std::function<absl::Status()> work);
  // Does work that later snapshots need, and reports nothing.
  void Prepare(std::function<void()> work);

  // Forgets waiting pieces, and reports nothing about writes in progress.
  void Cancel();
  // Returns true if nothing is being written.
  bool idle() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_SNAPSHOT_WRITER_H_
