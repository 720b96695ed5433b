// Reports the figures of a process's ranks: to the coordinator, and in metrics.
#ifndef WEFT_WORKER_SHELL_LOOP_RANK_REPORTS_H_
#define WEFT_WORKER_SHELL_LOOP_RANK_REPORTS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/session/messages.h"
#include "worker/core/worker_core.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/snapshot_writes.h"
#include "worker/shell/transport/transport.h"

namespace weft {

// Figures for /metrics; totals since the process started.
struct WorkerSnapshot {
  int runs = 0;  // runs that are worked on
  std::array<double, kJobKinds> busy_seconds{};
  std::array<double, kIdleCauses> idle_seconds{};
  BytesByClass live_bytes{}, peak_bytes{};
  // Most versions of one stage's weights, over the ranks.
  int weight_versions = 0, peak_weight_versions = 0;
  std::array<uint64_t, kJobKinds> jobs{};
  std::array<uint64_t, kTensorKinds> bytes_sent{}, bytes_received{};
  TransportCounters transport;
  SnapshotWrites checkpoints;
  std::vector<PeerPath> paths;  // paths of the transport, now
  uint64_t bytes_held = 0, stale_grants = 0, failures = 0;
  int silent_links = 0;  // links on which a tensor is awaited and that answer no question
};

// Returns the reports of the ranks of the core's run. `prepared`: every rank has its compute; before that a
// thread may be making it, and there is no memory to show. `gpu_figures` as in WorkerLoopOptions.
std::vector<RankReport> ReportRanks(int64_t now, bool prepared, WorkerCore& core, RankSeats& seats,
                                    const std::function<std::map<std::string, double>()>& gpu_figures);

// Adds the last spans of time and transfers of the ranks, for the report at the end of the run.
void AddSpans(const WorkerCore& core, std::vector<RankReport>* reports);

// Adds the figures of another loop of the process.
void Add(const WorkerSnapshot& other, WorkerSnapshot* totals);

// Adds the figures of the core's run to the totals.
void AddRun(int64_t now, bool prepared, WorkerCore& core, RankSeats& seats, WorkerSnapshot* totals);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RANK_REPORTS_H_
