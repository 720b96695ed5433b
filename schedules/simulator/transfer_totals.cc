#include "schedules/simulator/transfer_totals.h"

#include <cmath>
#include <cstdint>

#include "schedules/simulator/links.h"

namespace weft {

bool TransferTotalsAreExact(const Graph& graph, const SimulatedJobs& jobs, int steps) {
  if (graph.depends_on_steps() || graph.joint_order().any()) return false;
  double sum = 0;
  for (int phase = 0; phase < jobs.period(); ++phase) {
    for (const SimulatedJobs::Output& output : jobs.At(phase).outputs) {
      if (output.bytes != std::floor(output.bytes)) return false;
      sum += output.bytes;
    }
  }
  return sum * steps < kMaxExactInteger;
}

void CountTransfers(const SimulatedJobs& jobs, int steps, SimulationResult* result) {
  const int period = jobs.period();
  for (int phase = 0; phase < period; ++phase) {
    const SimulatedJobs::Table& table = jobs.At(phase);
    for (size_t i = 0; i + 1 < table.jobs.size(); ++i) {
      for (const SimulatedJobs::Output& output : table.OutputsOf(static_cast<int32_t>(i))) {
        // Steps of the phase whose output goes to a step of the run.
        const int last = steps - 1 - output.distance - phase;
        if (output.sent && last >= 0) {
          CountTransfer(table.jobs[i].rank, output.target, output.tensor, output.bytes, last / period + 1,
                        result);
        }
      }
    }
  }
}

}  // namespace weft
