#include "worker/shell/loop/outbox.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "proto/session/message_batch.h"

namespace weft {

bool Outbox::Gather(int64_t now, const Completions& completions, bool soon) {
  gathered_ += completions.jobs.size();
  urgent_ |= std::exchange(begins_, false);
  for (const Completion& completion : completions.jobs) urgent_ |= completion.job.step < watched_before_;
  soon |= urgent_;
  due_ns_ = std::min(due_ns_, soon ? now : now + gather_ns_);
  return soon;
}

bool Outbox::Send(int64_t now, FromWorker message, bool soon) {
  const auto* completions = std::get_if<Completions>(&message);
  const bool can_wait = completions != nullptr;
  const bool due = can_wait && Gather(now, *completions, soon);
  AddToBatch(&waiting_, std::move(message));
  if (can_wait || sending_) return due;
  for (FromWorker& m : TakeWaiting()) link_.Send(std::move(m));
  return false;
}

std::deque<FromWorker> Outbox::TakeWaiting() {
  gathered_ = 0;
  urgent_ = false;
  due_ns_ = INT64_MAX;
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
