// Implements which jobs of a rank are in flight for WorkerCore, and which may start beside them.
#include <algorithm>
#include <optional>
#include <vector>

#include "worker/core/worker_run.h"

namespace weft {
namespace {

// Returns true if the job needs the forward: then it is ready when that is launched, and must not be done
// beside it.
bool Needs(const Graph& graph, const Job& job, const Job& forward) {
  std::vector<Edge> edges;
  graph.Predecessors(job, &edges);
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& e) { return e.from == forward; });
}

}  // namespace

int64_t WorkerCore::RankState::NewestInFlight() const {
  const auto newest =
      std::find_if(in_flight.rbegin(), in_flight.rend(), [](const InFlight& job) { return !job.beside; });
  return newest == in_flight.rend() ? -1 : newest->id;
}

void WorkerCore::RankState::Launch(int64_t id) {
  Require(running == id || beside == id, "only a started job is launched");
  (running == id ? running : beside) = -1;
  std::find_if(in_flight.begin(), in_flight.end(), [&](const InFlight& job) {
    return job.id == id && !job.launched;
  })->launched = true;
}

// Ends a job in flight. The device does the later one of two jobs behind the other, or beside it: so the one
// that ended may overlap with those that started before it, and with those that started beside it.
RankClock::Given WorkerCore::RankState::End(int64_t id, bool launched, bool* overlapped) {
  const auto ended = std::find_if(in_flight.begin(), in_flight.end(), [&](const InFlight& job) {
    return job.id == id && job.launched == launched;
  });
  Require(ended != in_flight.end(), "only a started job ends");
  if (!launched) (running == id ? running : beside) = -1;
  const RankClock::Given given = ended->given;
  const auto next = in_flight.erase(ended);
  *overlapped = next != in_flight.begin() || (next != in_flight.end() && next->beside);
  return given;
}

void WorkerCore::NoteMade(const Job& consumer, int64_t made) {
  const Rank rank = run_->graph.RankOf(consumer);
  if (!run_->IsLocal(rank)) return;
  const int64_t id = run_->IdOf(consumer);
  for (RankState::InFlight& job : run_->StateOf(rank).in_flight) {
    if (job.id == id) job.given.inputs_made = std::max(job.given.inputs_made, made);
  }
}

// Returns the job to start beside the forward in flight. `waits`: the next job starts beside that forward,
// and not yet.
std::optional<int64_t> WorkerCore::TakeBeside(RankState& rank, bool* waits) const {
  if (!run_->graph.has_pairs()) return std::nullopt;
  const int64_t newest = rank.NewestInFlight();
  if (newest < 0) return std::nullopt;
  const Job forward = run_->JobOf(newest);
  const std::optional<int64_t> next = rank.ready.NextBeside();
  if (forward.kind != JobKind::kForward || !next.has_value()) return std::nullopt;
  if (rank.running != newest && Needs(run_->graph, run_->JobOf(*next), forward)) return std::nullopt;
  *waits = rank.beside >= 0 || rank.CountInFlight(/*beside=*/true) >= launch_ahead_;
  return *waits ? std::nullopt : rank.ready.TakeBeside();
}

}  // namespace weft
