#include "proto/session/message_batch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft {
namespace {

constexpr int kLookBack = 16;

// Returns the most jobs of the message that this one is joined to. The hashes of a job may be many.
size_t MostJobs(const Grant&) { return kMaxBatchJobs; }
size_t MostJobs(const Completions& completions) {
  const bool hashed = !completions.jobs.empty() && !completions.jobs.front().hashes.empty();
  return hashed ? kMaxHashedJobs : kMaxBatchJobs;
}

// `Batch` is Completions or Grant.
template <typename Batch, typename Message>
void AddToBatchAs(std::deque<Message>* waiting, Message message) {
  if (Batch* next = std::get_if<Batch>(&message)) {
    int looked = 0;
    for (auto it = waiting->rbegin(); it != waiting->rend() && looked < kLookBack; ++it, ++looked) {
      Batch* before = std::get_if<Batch>(&*it);
      if (before == nullptr) break;
      if (before->run != next->run || before->rank != next->rank) continue;
      if (before->token != next->token || before->jobs.size() + next->jobs.size() > MostJobs(*next)) break;
      before->jobs.insert(before->jobs.end(), next->jobs.begin(), next->jobs.end());
      return;
    }
  }
  waiting->push_back(std::move(message));
}

constexpr size_t kFrame = 64;

size_t BytesOfReports(const std::vector<RankReport>& ranks) {
  size_t bytes = kFrame;
  for (const RankReport& r : ranks) {
    const size_t entries = r.busy_seconds.size() + r.idle_seconds.size() + r.live_bytes.size() +
                           r.peak_bytes.size() + r.bytes_sent.size() + r.bytes_received.size();
    bytes += kFrame + 48 * entries;
  }
  return bytes;
}

}  // namespace

void AddToBatch(std::deque<FromWorker>* waiting, FromWorker message) {
  AddToBatchAs<Completions>(waiting, std::move(message));
}
void AddToBatch(std::deque<FromCoordinator>* waiting, FromCoordinator message) {
  AddToBatchAs<Grant>(waiting, std::move(message));
}

size_t BytesOf(const FromWorker& message) {
  if (const auto* m = std::get_if<Completions>(&message)) {
    size_t hashes = 0;
    for (const Completion& job : m->jobs) hashes += job.hashes.size();
    return kFrame + 40 * m->jobs.size() + 32 * hashes;
  }
  if (const auto* m = std::get_if<Hello>(&message))
    return 2 * kFrame + m->worker.size() + m->host.size() + m->address.size() + m->device.size() +
           m->device_id.size() + m->reduction_library.size();
  if (const auto* m = std::get_if<Report>(&message)) return BytesOfReports(m->ranks) + 32 * m->running.size();
  if (const auto* m = std::get_if<Finished>(&message)) return BytesOfReports(m->ranks);
  if (const auto* m = std::get_if<Failed>(&message)) return kFrame + m->reason.size();
  if (const auto* m = std::get_if<GroupId>(&message)) return kFrame + m->bytes.size();
  if (const auto* m = std::get_if<Stalled>(&message)) return kFrame + m->reason.size();
  if (const auto* m = std::get_if<SnapshotSaved>(&message)) return kFrame + m->failure.size();
  if (const auto* m = std::get_if<CheckpointSealed>(&message)) return kFrame + m->failure.size();
  if (const auto* m = std::get_if<Validation>(&message)) return kFrame + m->failure.size();
  if (const auto* m = std::get_if<CopiesHeld>(&message))
    return kFrame + m->run_id.size() + 10 * m->parts.size();
  if (const auto* m = std::get_if<Reattach>(&message))
    return 2 * kFrame + 32 * m->ranks.size() + 8 * m->snapshots.size() + 6 * m->validations.size();
  if (const auto* m = std::get_if<LogLines>(&message)) {
    size_t bytes = kFrame;
    for (const LogEntry& line : m->lines) bytes += kFrame + line.text.size();
    return bytes;
  }
  return kFrame;
}

size_t BytesOf(const FromCoordinator& message) {
  if (const auto* m = std::get_if<Grant>(&message)) return kFrame + 24 * m->jobs.size();
  if (const auto* m = std::get_if<GroupId>(&message)) return kFrame + m->bytes.size();
  if (const auto* m = std::get_if<Abort>(&message)) return kFrame + m->reason.size();
  if (const auto* m = std::get_if<Shutdown>(&message)) return kFrame + m->reason.size();
  if (const auto* m = std::get_if<Assign>(&message)) {
    size_t bytes = kFrame + m->spec.size() + m->output.size() + 32 * m->leases.size() +
                   5 * m->process_of_rank.size() + 15 * m->kept.size();
    for (const Peer& p : m->peers) bytes += kFrame + p.address.size() + p.label.size();
    return bytes;
  }
  return kFrame;
}

}  // namespace weft
