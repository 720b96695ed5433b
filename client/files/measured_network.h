// Finds the network of ranks from measured transfers: their links inside a machine and between machines.
// Pure.
//
// It is written as the file that --network takes (network_file.h).
#ifndef WEFT_CLIENT_FILES_MEASURED_NETWORK_H_
#define WEFT_CLIENT_FILES_MEASURED_NETWORK_H_

#include <string>
#include <vector>

#include "client/files/trace_file.h"
#include "schedules/job.h"
#include "schedules/simulator/measured_link.h"

namespace weft {

// The ranks that a run measures the links of: its layers are computed by the ranks `first`, `first` + 1, ..,
// and the weights of each come from the rank that is `shift` further, of `ranks` in a ring.
struct RankRing {
  int ranks = 2, first = 0, shift = 1;
};
// Returns the rings that measure each pair of ranks, with a model of so many layers; of more than 16 ranks
// the pairs whose distance is a power of two, or the largest there is.
std::vector<RankRing> RingsOf(int ranks, int layers);

// Two speeds count as equal if they differ by less than this part. On machines that are shared, such
// differences come and go within minutes, and a plan would deal the work unequally for them.
inline constexpr double kSameSpeed = 0.05;
// Puts ranks into groups, such that the next faster and the next slower rank of a group count as equal, and
// gives each the speed of its group's slowest, for which a step waits.
std::vector<double> JoinNearSpeeds(const std::vector<double>& speeds);

struct MeasuredNetwork {
  // The link of two ranks, in both directions.
  struct Pair {
    Rank a = 0, b = 0;  // a < b
    MeasuredLink link;
  };
  std::vector<std::string> node_of_rank;  // by name; empty if they are not told apart
  std::vector<double> speeds;             // by rank, the fastest 1
  MeasuredLink inside, between;           // of two ranks of one node, and of two nodes
  std::vector<Pair> pairs;                // pairs that were measured, in order
};

// Holds the transfers from one rank to another that followed each other without a pause.
struct RankBurst {
  Rank from = 0, to = 0;
  Burst burst;
};
// Joins the transfers of one training that overlap. Those whose job has no stage (Trace::transfers) do not
// count.
std::vector<RankBurst> BurstsOf(const std::vector<DrawnTransfer>& of_training);

// Fits one link to all bursts, between whatever ranks.
MeasuredLink LinkOf(const std::vector<RankBurst>& bursts);

// Fits the links of these ranks. `node_of_rank` may be empty.
MeasuredNetwork NetworkOf(std::vector<std::string> node_of_rank, const std::vector<RankBurst>& bursts);

// Returns the network as a file; `source` is the run file that was measured.
std::string NetworkText(const std::string& source, const MeasuredNetwork& network);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_MEASURED_NETWORK_H_
