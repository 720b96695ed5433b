#include "worker/shell/run_slots.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace weft {

absl::StatusOr<std::unique_ptr<RunSlots>> RunSlots::Open(int runs, const RunSlot::Options& options,
                                                         Device& device, DaemonLog& log) {
  Slots slots;
  for (int i = 1; i <= runs; ++i) {
    RunSlot::Options own = options;
    if (i > 1) {
      absl::StrAppend(&own.hello.worker, "-", i);
      own.hello.process = -1;  // the number that is wanted is the first one's
    }
    absl::StatusOr<std::unique_ptr<RunSlot>> slot = RunSlot::Open(std::move(own), device, log);
    if (!slot.ok()) return slot.status();
    slots.push_back(*std::move(slot));
  }
  return std::unique_ptr<RunSlots>(new RunSlots(std::move(slots)));
}

std::vector<RunSlot*> RunSlots::all() const {
  std::vector<RunSlot*> all;
  for (const std::unique_ptr<RunSlot>& slot : slots_) all.push_back(slot.get());
  return all;
}

void RunSlots::Register() {
  for (const std::unique_ptr<RunSlot>& slot : slots_) slot->Register();
}

absl::Status RunSlots::Serve(const std::function<void()>& stop_others) {
  Mutex mu;
  std::optional<absl::Status> first;
  const auto serve = [&](RunSlot& slot) {
    absl::Status status = slot.Serve();
    if (status.ok() && slot.shutdown().has_value()) status = slot.health();
    {
      MutexLock lock(mu);
      if (!first.has_value()) first = status;
    }
    if (std::any_of(slots_.begin(), slots_.end(), [](const auto& other) { return !other->ended(); }))
      stop_others();
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < slots_.size(); ++i) threads.push_back(StartThread([&, i] { serve(*slots_[i]); }));
  serve(*slots_.front());
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(mu);
  return *first;
}

WorkerSnapshot RunSlots::Snapshot() const {
  WorkerSnapshot all;
  for (const std::unique_ptr<RunSlot>& slot : slots_) Add(slot->loop().Snapshot(), &all);
  return all;
}

std::string RunSlots::Problem() const {
  for (const std::unique_ptr<RunSlot>& slot : slots_) {
    if (std::string problem = slot->loop().Problem(); !problem.empty()) return problem;
  }
  return "";
}

std::string RunSlots::Stall() const {
  for (const std::unique_ptr<RunSlot>& slot : slots_) {
    if (std::string stall = slot->loop().Stall(); !stall.empty()) return stall;
  }
  return "";
}

std::string RunSlots::ReasonToEnd() const {
  for (const std::unique_ptr<RunSlot>& slot : slots_) {
    if (std::string reason = slot->shutdown().value_or(""); !reason.empty()) return reason;
  }
  return "";
}

void RunSlots::Close() {
  for (const std::unique_ptr<RunSlot>& slot : slots_) slot->Close();
}

}  // namespace weft
