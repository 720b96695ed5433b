// Counts how many messages must follow one another between two ticks of a schedule.
//
// A tick is the time of one compute job, the same for all; reduce and update take none. A message is an edge
// of the job graph from one rank to another that carries a tensor (order edges carry none). All jobs have the
// ticks that the simulator gives them where messages take no time. Between the jobs that end at a tick and
// those that start there lie m communication steps. A message may go in any step after what makes its tensor
// is done, so one that depends on another (a sum of gradients, weights after their update) goes in a later
// step. The number that counts is the smallest m with which no job starts later than its tick: what a tick
// must wait for communication, in messages.
//
// Messages that are not needed at once may spread over the ticks until they are: a running sum that
// goes from rank to rank while they compute needs one step, an exchange among N ranks for which all of them
// wait about N. Measured runs have no common ticks; there the same is seen as idle time of cause `transfer`.
//
// Pure. Time and memory grow with the messages of the simulated steps.
#ifndef WEFT_SCHEDULES_SIMULATOR_COMMUNICATION_H_
#define WEFT_SCHEDULES_SIMULATOR_COMMUNICATION_H_

#include "absl/status/statusor.h"
#include "schedules/graph/graph.h"

namespace weft {

struct CommunicationSteps {
  // Steps where a rank sends at most one message in a step, and receives at most one; those that are needed
  // first go first.
  int most = 0;
  // Steps if a rank can send any number at a time: the longest chain of messages that depend on one another,
  // at most `most`.
  int chain = 0;
  double messages = 0;  // of a step of training, all ranks together
};

// Steps of training that are enough to see the steady state: a period, and some more than the largest
// staleness.
int SteadySteps(const Schedule& schedule);

// Counts over `steps` steps of training. Failure: as Simulate of simulate.h.
absl::StatusOr<CommunicationSteps> CountCommunicationSteps(const Graph& graph, int steps);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_COMMUNICATION_H_
