#include "worker/shell/loop/outbox.h"

#include <utility>
#include <variant>

#include "proto/session/message_batch.h"

namespace weft {

bool Outbox::Gather(const Completions& completions) {
  gathered_ += completions.jobs.size();
  bool soon = std::exchange(begins_, false);
  urgent_ |= soon;
  for (const Completion& completion : completions.jobs) {
    urgent_ |= completion.job.step < watched_before_;
    soon |= completion.job.kind == JobKind::kUpdate;
  }
  return soon || urgent_;
}

bool Outbox::Send(FromWorker message) {
  const auto* completions = std::get_if<Completions>(&message);
  const bool can_wait = completions != nullptr;
  const bool soon = can_wait && Gather(*completions);
  AddToBatch(&waiting_, std::move(message));
  if (can_wait || sending_) return soon;
  for (FromWorker& m : TakeWaiting()) link_.Send(std::move(m));
  return false;
}

std::deque<FromWorker> Outbox::TakeWaiting() {
  gathered_ = 0;
  urgent_ = false;
  return std::exchange(waiting_, {});
}

bool Outbox::SendGathered(Mutex& mu) {
  if (sending_ || waiting_.empty()) return false;
  sending_ = true;
  while (!waiting_.empty()) {
    std::deque<FromWorker> batch = TakeWaiting();
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
