#include "run/received_copies.h"

#include <algorithm>
#include <map>

#include "run/inline_bytes.h"
#include "run/layer_spec.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

constexpr int64_t kStateNumbers = 4096;  // of a state: numbers beside its buffers

// Returns the bytes of a stage's state on its way: versions, the optimizer's buffers and a sum in progress.
int64_t StateBytes(const Graph& graph, int stage, const RunSpec& run, const StageMemory& bytes) {
  const Kept kept = graph.protocol(stage).KeptBy(graph, 0);
  const int64_t buffers = kept.versions + kept.sums + OptimizerBuffers(run.train.optimizer);
  return buffers * bytes.parameters + kStateNumbers;
}

class ReceivedCount {
 public:
  ReceivedCount(const Graph& graph, const RunSpec& run, const std::vector<StageMemory>& stages)
      : graph_(graph),
        run_(run),
        stages_(stages),
        ranks_(graph.schedule().ranks),
        of_forward_(graph.schedule().stages, 0) {}

  void Count(int step);
  ReceivedCopies Take() const;

 private:
  struct OfRank {
    int64_t fetched = 0;                              // bytes of the job that fetches most
    std::map<std::pair<int, JobKind>, int64_t> kept;  // by stage and kind: fetched for several jobs
    int64_t of_step = 0;                              // for reduces and updates of a step
    int64_t of_largest_step = 0;
  };
  void CountJob(const Job& job, std::map<int, int64_t>* of_microbatch);

  const Graph& graph_;
  const RunSpec& run_;
  const std::vector<StageMemory>& stages_;
  std::vector<OfRank> ranks_;
  std::vector<int64_t> of_forward_;
};

// Adds what comes to the job; to `of_microbatch`, by stage, what is there until its micro-batch's backward.
void ReceivedCount::CountJob(const Job& job, std::map<int, int64_t>* of_microbatch) {
  const Rank reader = graph_.RankOf(job);
  if (reader < 0 || reader >= static_cast<Rank>(ranks_.size())) return;  // of a schedule yet to be refused
  OfRank& rank = ranks_[reader];
  Edges edges;
  graph_.Predecessors(job, &edges);
  int64_t fetched = 0;
  for (const Edge& e : edges) {
    if (e.joined || graph_.RankOf(e.from) == reader) continue;
    const int64_t bytes = CopyBytes(graph_, e, run_, stages_);
    if (!IsCopied(run_, bytes)) continue;
    const bool computes = HasMicrobatch(job.kind);
    if (e.tensor == TensorKind::kActivation || e.tensor == TensorKind::kInputGradient) {
      (*of_microbatch)[job.stage] += bytes;
    } else if (computes && (e.tensor == TensorKind::kWeights || e.tensor == TensorKind::kState)) {
      fetched += bytes;
    } else {
      rank.of_step += bytes;
    }
  }
  if (graph_.KeepsFetched(job)) {
    int64_t& kept = rank.kept[{job.stage, job.kind}];
    kept = std::max(kept, fetched);
  }
  rank.fetched = std::max(rank.fetched, fetched);
}

void ReceivedCount::Count(int step) {
  for (OfRank& rank : ranks_) rank.of_step = 0;
  std::map<int, std::map<int, int64_t>> of_microbatch;  // by micro-batch and stage
  for (int i = 0; i < graph_.jobs_per_step(); ++i) {
    const Job job = graph_.JobAt(step, i);
    CountJob(job, &of_microbatch[HasMicrobatch(job.kind) ? job.microbatch : -1]);
  }
  for (const auto& [microbatch, stages] : of_microbatch) {
    for (const auto& [stage, bytes] : stages) of_forward_[stage] = std::max(of_forward_[stage], bytes);
  }
  for (OfRank& rank : ranks_) rank.of_largest_step = std::max(rank.of_largest_step, rank.of_step);
}

ReceivedCopies ReceivedCount::Take() const {
  const Schedule& schedule = graph_.schedule();
  // A holder that is late has what others made for it in the steps under way, and one behind them.
  const int64_t steps = std::min(run_.train.steps, 2 + schedule.MaxStaleness());
  ReceivedCopies copies{{}, of_forward_};
  for (const OfRank& rank : ranks_) {
    int64_t kept = 0;
    for (const auto& [key, bytes] : rank.kept) kept += bytes;
    copies.of_rank.push_back(kFetchesAtOnce * rank.fetched + kept + steps * rank.of_largest_step);
  }
  return copies;
}

}  // namespace

bool IsCopied(const RunSpec& run, int64_t bytes) { return run.separate_memory || bytes <= kInlineBytes; }

int64_t CopyBytes(const Graph& graph, const Edge& edge, const RunSpec& run,
                  const std::vector<StageMemory>& stages) {
  const int stage = edge.from.stage;
  const StageMemory& bytes = stages[stage];
  const Protocol& protocol = graph.protocol(stage);
  switch (edge.tensor) {
    case TensorKind::kActivation:
      return bytes.output;
    case TensorKind::kInputGradient:
      return stages[edge.to.stage].output;
    case TensorKind::kWeights:
      return protocol.layout() == Layout::kSliced ? SliceBytes(bytes, edge.part, protocol.size())
                                                  : AlignedBytes(bytes.parameters);
    case TensorKind::kGradient:
      return SliceBytes(bytes, edge.part, protocol.size());
    case TensorKind::kGradientSum:
      return edge.from.kind == JobKind::kReduce
                 ? AlignedBytes(SumBytes(bytes, protocol.KeptBy(graph, edge.from.member), edge.from.member))
                 : AlignedBytes(bytes.parameters);
    case TensorKind::kNorm:
      return AlignedBytes(kNormBytes);
    case TensorKind::kState:
      return AlignedBytes(StateBytes(graph, stage, run, bytes));
    case TensorKind::kOrder:
    case TensorKind::kCopy:
      break;
  }
  return 0;
}

ReceivedCopies CountReceived(const Graph& graph, const RunSpec& run, const std::vector<StageMemory>& stages) {
  ReceivedCount count(graph, run, stages);
  // No edge of these steps comes from before the first.
  const int period = graph.schedule().period;
  const int first = (1 + graph.schedule().MaxStaleness() + period) / period * period;
  for (int step = first; step < first + period; ++step) count.Count(step);
  return count.Take();
}

}  // namespace weft
