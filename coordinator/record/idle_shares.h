// Computes idle time by cause, as shares, so that measurements and the simulator's figures can stand side by
// side.
//
// A share is of the time in which ranks had work: `no_work`, the time before a rank's first job and after its
// last, is left out of both. Busy time and the shares of all causes sum to 1. Pure.
#ifndef WEFT_COORDINATOR_RECORD_IDLE_SHARES_H_
#define WEFT_COORDINATOR_RECORD_IDLE_SHARES_H_

#include <map>
#include <string>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/drawing/drawing.h"
#include "schedules/simulator/simulate.h"

namespace weft {

using IdleShares = std::map<std::string, double>;  // by cause

// Returns the shares of all ranks together, as they reported.
IdleShares MeasuredIdle(const std::vector<RankReport>& reports);
// Returns the shares from seconds by rank and cause, as summary.json has them.
IdleShares MeasuredIdle(const std::vector<std::map<std::string, double>>& idle_seconds,
                        const std::vector<double>& wall_seconds);
IdleShares PredictedIdle(const SimulationResult& result);

double Sum(const IdleShares& shares);

// Returns a row for each cause that has at least a thousandth of the time in either.
std::string IdleTable(const IdleShares& measured, const IdleShares& predicted, const TextStyle& style = {});

// Returns a note about `dispatch` where ranks share cores; "" where they need not.
std::string CoresNote(int ranks, int cores);

// Adds the idle times of ranks and the tensors on their way to pictures and traces.
void DrawWaits(const std::vector<IdleInterval>& idle, const std::vector<TransferInterval>& transfers,
               DrawingOptions* drawing);

// Returns the number of cores that this process may use.
int CoresOfProcess();

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_IDLE_SHARES_H_
