// Finds which ranks save the state of which stages, as checkpoints and copies hold it: the rank of an update
// saves the stage, or its slice of it, behind that update.
//
// One holder saves a stage that several hold whole; every member saves its slice of one that is cut by width;
// where a state migrates, the rank that makes the version saves it. Pure.
#ifndef WEFT_SCHEDULES_SYNC_SAVING_H_
#define WEFT_SCHEDULES_SYNC_SAVING_H_

#include <vector>

#include "schedules/graph/graph.h"

namespace weft {

// Returns true if the rank of the update saves the stage behind it.
bool Saves(const Graph& graph, const Job& update);

// Returns the updates behind which the state of the step is saved, which so many updates have made: one for
// each stage, or slice of one. Requires step > 0.
std::vector<Job> SavingUpdates(const Graph& graph, int step);

// Returns the number of the slice that is saved behind the update; 0 for a whole stage.
int SliceSavedBehind(const Graph& graph, const Job& update);

// Returns by how many steps a snapshot has to be announced before the jobs that could drop what it needs: one
// where each holder reads every version by itself until the last job that needs it; else as many as
// micro-batches may read old weights. A run that goes on leaves out snapshots of that many steps behind its
// first, because it lacks older versions that its first steps do not read.
int32_t SnapshotLead(const Graph& graph);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SYNC_SAVING_H_
