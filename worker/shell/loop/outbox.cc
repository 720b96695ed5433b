#include "worker/shell/loop/outbox.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "proto/session/message_batch.h"

namespace weft {

bool Outbox::IsSentSoon(const Completions& completions) const {
  return begins_ ||
         std::any_of(completions.jobs.begin(), completions.jobs.end(), [this](const Completion& c) {
           return c.job.kind == JobKind::kUpdate || c.job.step < watched_steps_;
         });
}

bool Outbox::Send(FromWorker message) {
  const auto* completions = std::get_if<Completions>(&message);
  const bool can_wait = completions != nullptr;
  const bool soon = can_wait && IsSentSoon(*completions);
  if (can_wait) gathered_ += completions->jobs.size(), begins_ = false;
  AddToBatch(&waiting_, std::move(message));
  if (can_wait || sending_) return soon;
  gathered_ = 0;
  for (FromWorker& m : waiting_) link_.Send(std::move(m));
  waiting_.clear();
  return soon;
}

bool Outbox::SendGathered(Mutex& mu) {
  if (sending_ || waiting_.empty()) return false;
  sending_ = true;
  while (!waiting_.empty()) {
    gathered_ = 0;
    std::deque<FromWorker> batch;
    batch.swap(waiting_);
    mu.Unlock();
    for (FromWorker& message : batch) link_.Send(std::move(message));
    mu.Lock();
  }
  sending_ = false;
  sent_.SignalAll();
  return true;
}

bool Outbox::AwaitSent(Mutex& mu) {
  if (!sending_) return false;
  while (sending_) sent_.Wait(mu);
  return true;
}

}  // namespace weft
