#include "worker/shell/loop/outbox.h"

#include <utility>
#include <variant>

#include "proto/session/message_batch.h"

namespace weft {

bool Outbox::Send(FromWorker message) {
  const auto* completions = std::get_if<Completions>(&message);
  const bool can_wait = completions != nullptr;
  const bool first = can_wait && gathered_ == 0;
  if (can_wait) gathered_ += completions->jobs.size();
  AddToBatch(&waiting_, std::move(message));
  if (can_wait || sending_) return first;
  gathered_ = 0;
  for (FromWorker& m : waiting_) link_.Send(std::move(m));
  waiting_.clear();
  return first;
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
