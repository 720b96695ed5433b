// Tells how fast ranks are from the times that they took for work.
//
// A rank takes c / v for work of cost c at speed v. Where two ranks did work of one kind, their times tell
// the ratio of their speeds; so does a chain of ranks that have kinds of work in common. Costs and speeds are
// fitted to all times together: the squares of the relative errors, each weighted by the time that was spent,
// are as small as possible. Ranks that no chain connects cannot be compared; they count as equally fast, and
// the costs of their work take up the difference.
//
// Pure; deterministic.
#ifndef WEFT_PLANNER_RANK_SPEEDS_H_
#define WEFT_PLANNER_RANK_SPEEDS_H_

#include <vector>

namespace weft {

// The time that a rank took for a kind of work, as a mean over so many times.
struct TimedWork {
  int rank = 0;
  int work = 0;
  double seconds = 0;
  double count = 1;
};

struct RankSpeeds {
  std::vector<double> speeds;   // by rank
  std::vector<double> seconds;  // by kind of work: on a rank of speed 1; 0 for work that nobody did
};

// Fits both. Work that took no time is left out. `known`: speeds by rank that are known, 0 for one that is
// not; may be shorter than the ranks.
RankSpeeds FitRankSpeeds(const std::vector<TimedWork>& times, int ranks, int works,
                         const std::vector<double>& known = {});

// Makes the fastest of the first so many ranks have speed 1.
void ScaleToFastest(int ranks, RankSpeeds* fit);

}  // namespace weft

#endif  // WEFT_PLANNER_RANK_SPEEDS_H_
