// Joins the cores as their shells do, without the shells: the two ends of a session with the packets between
// them, and the answers of a worker's shell that need no work. Shared by the simulated world, whose network
// and times are random, and the golden transcripts, whose are written down.
#ifndef WEFT_TESTS_SIMULATION_JOINED_CORES_H_
#define WEFT_TESTS_SIMULATION_JOINED_CORES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/events.h"
#include "proto/session/link.h"
#include "worker/core/worker_core.h"

namespace weft {

class JoinedSession {
 public:
  JoinedSession(SessionId session, LinkOptions options)
      : worker_end(session, options), coordinator_end(session, options) {}

  SessionId session() const { return worker_end.link(); }

  // Takes a packet in at the coordinator's end. Returns what it brings to the core, in order.
  absl::StatusOr<std::vector<Event>> ToCoordinator(int64_t now, Packet<FromWorker> packet);
  // Takes a packet in at the worker's end.
  absl::StatusOr<std::vector<FromCoordinator>> ToWorker(int64_t now, Packet<FromCoordinator> packet);

  // Lets each end send again what the other has not received, over a new connection.
  absl::Status Resume(int64_t now);

  Link<FromWorker, FromCoordinator> worker_end;
  Link<FromCoordinator, FromWorker> coordinator_end;
};

// Carries out an effect that a shell answers at once: the reports at the end of a run, and the end itself.
// Returns what the core says to the answer; nothing for any other effect.
std::optional<WorkerEffects> AnswerAtOnce(int64_t now, const WorkerEffect& effect, WorkerCore* core);

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_JOINED_CORES_H_
