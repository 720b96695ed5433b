// Lists the protocols: how the holders of a stage may come to the same weights (protocol.h). Each is one
// file of this folder; docs/design/weight_synchronization.md compares them.
#ifndef WEFT_SCHEDULES_SYNC_CATALOGUE_H_
#define WEFT_SCHEDULES_SYNC_CATALOGUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/sync/protocol.h"

namespace weft {

struct RunSchedule;

// SlicedSums(), the protocol of a schedule that names none, is declared beside Schedule (schedule.h). A
// single holder sums and updates. With several holders, each sums a slice of all gradients and hands the sum
// to all, and each updates its copy. (single_holder.cc, sliced_sum.cc)

// Point to point: a running sum goes from each micro-batch's backward to the next one's; one holder, the
// home, updates; the new version goes from holder to holder in the order in which they read it. (relay.cc)
std::shared_ptr<const Sync> Relayed();
// Each holder has a slice of the weights, feeds and updates it; a job gathers all slices, and its gradient is
// scattered to them. (sharded.cc)
std::shared_ptr<const Sync> ShardedByWidth(std::function<std::vector<Rank>(int stage)> holders);
// The state of a stage goes to the jobs that need it, one after the other. `tick`: when it is at a compute
// job of any step, on a clock of equal ticks, later by the same number in every next step. (migrating.cc)
std::shared_ptr<const Sync> Migrating(std::function<int64_t(const Job&)> tick);
// Returns the same choice, but where the holders of a stage compute with their own weights, or hold slices,
// their devices sum by one joint operation, and gather by another; in no order of micro-batches.
// (collective.cc)
std::shared_ptr<const Sync> WithCollectives(std::shared_ptr<const Sync> sync);

// Returns true if the state of stages migrates; its ticks may be missing yet.
bool IsMigrating(const Sync& sync);
// Returns the ticks of states that migrate; null for others, and where they are missing.
std::function<int64_t(const Job&)> TicksOf(const Sync& sync);

// Returns the same protocols for a run whose updates wait for the global norm of the gradients. (clipping.cc)
Protocols WithGlobalNorm(Protocols protocols);

// Returns the protocols of a schedule under the terms of its run.
Protocols ProtocolsOf(const RunSchedule& schedule, Sync::Steps steps);

// Return the names that a run file may choose by, and what they stand for. NotFound, with the nearest name.
std::vector<std::string> SyncNames();
absl::StatusOr<std::shared_ptr<const Sync>> SyncOfName(const std::string& name, int ranks);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_CATALOGUE_H_
