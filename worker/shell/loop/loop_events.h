// Notes in the flight ring what happens to a run in this process: jobs that begin and end, tensors that go
// between processes, grants, failures. Where something stalls or crashes, the last of these say what was
// awaited, and from whom.
//
// Calls the listener when a stall begins.
//
// A note costs about a tenth of a microsecond, and nothing where there is no ring. The times are those that
// the caller has anyway. Borrows the ring; thread-safe.
#ifndef WEFT_WORKER_SHELL_LOOP_LOOP_EVENTS_H_
#define WEFT_WORKER_SHELL_LOOP_LOOP_EVENTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/log/flight_ring.h"
#include "proto/session/messages.h"
#include "schedules/job.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/loop/work_threads.h"

namespace weft {

class LoopEvents {
 public:
  using Stalled = std::function<void(const std::string& why)>;
  // Takes the ring and the listener of WorkerLoopOptions; either may be null.
  explicit LoopEvents(FlightRing* ring, Stalled stalled = nullptr)
      : ring_(ring), stalled_(std::move(stalled)) {}

  // A thread begins a task: a job, or a rank's part of preparing, saving or ending.
  void TaskBegins(int64_t now, const WorkThreads::Doing& doing) const;
  // A thread has done such a part.
  void PartEnds(int64_t now, const WorkThreads::Doing& doing) const;
  // A job has been computed, or the device has been given it, by the thread that began it.
  void JobEnds(int64_t now, Rank rank, const Job& job, const absl::Status& status, bool launched) const;
  void DoneOnDevice(int64_t now, Rank rank, const Job& job, const absl::Status& status) const;

  void Wants(int64_t now, int process, const TensorKey& key) const { Note(now, "wants", process, key); }
  void Offers(int64_t now, int process, const TensorKey& key) const { Note(now, "offers", process, key); }
  void Arrived(int64_t now, int process, const TensorKey& key) const { Note(now, "arrived", process, key); }

  // A message of the coordinator has come; only grants are noted, since the log has the others.
  void Received(int64_t now, const FromCoordinator& message) const;
  // The run fails here; where a time is over, that is a stall.
  void RunFails(int64_t now, uint64_t run, const absl::Status& status) const;
  // Something begins not to get on.
  void Stalls(int64_t now, const std::string& why) const;

 private:
  void Note(int64_t now, absl::string_view event, int process, const TensorKey& key) const;

  FlightRing* const ring_;
  const Stalled stalled_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_LOOP_EVENTS_H_
