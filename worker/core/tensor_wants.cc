#include "worker/core/tensor_wants.h"

#include <algorithm>
#include <vector>

#include "schedules/sync/state_route.h"

namespace weft {
bool TensorWants::FetchesInTurn(const Job& job) const {
  const Graph& graph = run_.graph();
  if (graph.route() != nullptr) {
    const std::optional<Job> before = graph.route()->Before(job);
    return before.has_value() && !run_.IsLocal(graph.RankOf(*before));
  }
  // Joint operations have their own turns.
  if (!graph.FetchesWeights(job) || graph.GathersWeights(job)) return false;
  if (graph.FetchedBy(job).has_value()) return false;  // a job of the same rank did
  // Weights that ranks of this process hold are at hand: such a job may end before its turn would come.
  const std::vector<Rank>& members = graph.members(job.stage);
  if (graph.protocol(job.stage).layout() == Layout::kWhole)
    return !run_.IsLocal(members[graph.SourceOf(job)]);
  return !std::all_of(members.begin(), members.end(), [this](Rank r) { return run_.IsLocal(r); });
}

void TensorWants::Claim(int64_t now, Rank rank, const Job& job, bool room, WorkerEffects* out) {
  const bool in_turn = FetchesInTurn(job);
  WantInputs(now, job, kNotices | (room ? kRest : 0) | (in_turn ? 0 : kWeights), out);
  if (!in_turn) return;
  Turn& turn = turns_[run_.PlaceOf(rank)];
  turn.waiting.push_back(job);
  WantInTurn(now, &turn, out);
}

void TensorWants::Ended(int64_t now, Rank rank, const Job& job, WorkerEffects* out) {
  if (!FetchesInTurn(job)) return;
  Turn& turn = turns_[run_.PlaceOf(rank)];
  --turn.fetching;
  WantInTurn(now, &turn, out);
}

void TensorWants::WantInTurn(int64_t now, Turn* turn, WorkerEffects* out) {
  for (; !turn->waiting.empty() && turn->fetching < kFetchesAtOnce; ++turn->fetching) {
    WantInputs(now, turn->waiting.front(), kWeights, out);
    turn->waiting.pop_front();
  }
}

TensorWants::Inputs TensorWants::InputOf(const Edge& edge) {
  if (edge.tensor == TensorKind::kOrder) return kNotices;
  return edge.tensor == TensorKind::kWeights || edge.tensor == TensorKind::kState ? kWeights : kRest;
}

void TensorWants::WantInputs(int64_t now, const Job& job, int which, WorkerEffects* out) {
  std::vector<Edge> edges;
  run_.graph().Predecessors(job, &edges);
  for (const Edge& e : edges) {
    if ((which & InputOf(e)) == 0) continue;
    if (e.joined || (run_.IsBeforeRun(e) && !run_.IsInitialWeights(e))) continue;
    const Rank producer = run_.graph().RankOf(e.from);
    if (run_.IsLocal(producer)) continue;
    const TensorKey key = run_.KeyOf(e);
    wants_[key] = {run_.IdOf(job), e.from.microbatch, now};
    out->push_back(WantEffect{run_.ProcessOf(producer), key});
  }
}

std::optional<TensorWants::Want> TensorWants::Take(const TensorKey& key) {
  const auto found = wants_.find(key);
  if (found == wants_.end()) return std::nullopt;
  const Want want = found->second;
  wants_.erase(found);
  return want;
}

}  // namespace weft
