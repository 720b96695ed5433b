// Makes a profile of the traces of short trainings, in which each layer is a stage and one rank has them all
// (client/commands/profile_command.h). Pure.
#ifndef WEFT_CLIENT_FILES_MEASURED_PROFILE_H_
#define WEFT_CLIENT_FILES_MEASURED_PROFILE_H_

#include <vector>

#include "client/files/trace_file.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "schedules/simulator/measured_link.h"

namespace weft {

// Returns the profile: means without the first step and without extremes. Without the split trace it has no
// halves of backwards.
nlohmann::ordered_json ProfileOf(const RunSpec& run, const Trace& whole, const Trace* split = nullptr,
                                 const MeasuredLink& link = {});

// Returns the number of micro-batches of each rank and step in the training of SlowToTogether: the first,
// whose weights are not in the caches, and others, to tell it from. Fewer where a batch would be too large
// for a run file, or where a trace would not hold two steps. `layers` is the run with each layer as a stage.
int MicrobatchesTogether(const RunSpec& layers, int ranks);

// Gives the profile's layers the times that their jobs took while all ranks of a training computed at the
// same time: they share memory and caches, so that jobs take longer than alone. Halves of backwards, which
// that training lacks, and updates, which it divides, become longer like whole backwards. Layers also get
// `accumulate`, from the reduces, and, if each rank computes several micro-batches of a step, `cold`: the
// extra time of the first of them; and the profile gets `dispatch`. `together` is the run, in which each rank
// has all layers and sums a slice of all gradients; `trace` is its trace. Returns the ranks' speeds,
// near ones joined (JoinNearSpeeds); the fastest has 1.
std::vector<double> SlowToTogether(const RunSpec& together, const Trace& trace,
                                   nlohmann::ordered_json* profile);

// Adds the bytes that the jobs of each layer take while they run (run/measured_buffers.h), from the summaries
// of such trainings with retained activations, of whole and of split backwards. Adds nothing where a summary
// lacks them.
void AddBuffers(const RunSpec& run, const nlohmann::json& whole, const nlohmann::json& split,
                nlohmann::ordered_json* profile);

// Returns the bytes per second of copies to the host's memory and back: those of all layers under `offload`,
// over what their forwards and backwards take longer than under `retain`, by the least time of each. 0 where
// they do not take longer.
double HostBandwidthOf(const RunSpec& run, const Trace& retained, const Trace& offloaded);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_MEASURED_PROFILE_H_
