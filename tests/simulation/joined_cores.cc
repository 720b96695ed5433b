#include "tests/simulation/joined_cores.h"

#include <utility>

namespace weft {

absl::StatusOr<std::vector<Event>> JoinedSession::ToCoordinator(int64_t now, Packet<FromWorker> packet) {
  std::vector<FromWorker> messages;
  if (absl::Status s = coordinator_end.Receive(now, std::move(packet), &messages); !s.ok()) return s;
  std::vector<Event> events;
  events.reserve(messages.size());
  for (FromWorker& m : messages) events.push_back(SessionMessage{session(), std::move(m)});
  return events;
}

absl::StatusOr<std::vector<FromCoordinator>> JoinedSession::ToWorker(int64_t now,
                                                                     Packet<FromCoordinator> packet) {
  std::vector<FromCoordinator> messages;
  if (absl::Status s = worker_end.Receive(now, std::move(packet), &messages); !s.ok()) return s;
  return messages;
}

absl::Status JoinedSession::Resume(int64_t now) {
  if (absl::Status s = worker_end.Resume(now, coordinator_end.received()); !s.ok()) return s;
  return coordinator_end.Resume(now, worker_end.received());
}

std::optional<WorkerEffects> AnswerAtOnce(int64_t now, const WorkerEffect& effect, WorkerCore* core) {
  WorkerEffects more;
  if (std::holds_alternative<FinishEffect>(effect)) {
    std::vector<RankReport> reports;
    for (const Rank rank : core->ranks()) {
      reports.emplace_back();
      reports.back().rank = rank;
    }
    core->OnFinished(std::move(reports), &more);
  } else if (std::holds_alternative<ForgetEffect>(effect)) {
    core->Forget(now, &more);
  } else {
    return std::nullopt;
  }
  return more;
}

}  // namespace weft
