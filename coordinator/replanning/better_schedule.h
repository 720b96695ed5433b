// Looks for a schedule under which a run takes less time for a step, at the speeds that were measured of its
// ranks.
//
// The cut into stages, the micro-batches, the number of ranks and the rule stay, so a run can go on from its
// checkpoint under the schedule that is found, and ends with the same bits. The search tries every family
// with these sizes; micro-batches dealt by speed; stages placed by speed, improved by moving one stage at a
// time; and, where a pipeline splits its backwards, an order of its jobs. Each is judged by a simulation with
// the measured costs.
//
// The time of links decides between schedules that send different amounts. If it is not known, the search
// tries only schedules that send hardly more than the present one, keep hardly more activations, and have as
// many holders of each stage. Where slow links decide, no rank may need more than a tenth more memory than
// the fullest did before, unless the run has a budget; and stages placed on ranks also exchange their ranks,
// to avoid such a link.
//
// Pure, but for `stop`. A search makes a few dozen simulations: call it on a thread that nobody waits for.
#ifndef WEFT_COORDINATOR_REPLANNING_BETTER_SCHEDULE_H_
#define WEFT_COORDINATOR_REPLANNING_BETTER_SCHEDULE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/replanning/measured_jobs.h"
#include "coordinator/replanning/measured_links.h"
#include "run/run_spec.h"
#include "schedules/simulator/measured_link.h"
#include "schedules/simulator/network.h"

namespace weft {

struct ReplanQuestion {
  RunSpec run;  // under its present schedule
  RankCosts measured;
  std::optional<MeasuredLink> link;  // of each rank to each other; absent: not known
  // Links that are slower than that, for a run that moves by itself. They count if they make its step longer
  // by more than the gain that it looks for; else links count as not known.
  std::vector<PairLink> slow_pairs = {};
  // They count although the present schedule may not show them, because the run has moved away from one.
  bool has_left = false;
};

struct BetterSchedule {
  ScheduleSpec schedule;  // the best found: the present one where nothing is better
  double present = 0;     // predicted seconds of a step under the present schedule
  double step = 0;        // and under the best
  // No schedule of whole jobs takes less: all work, over the speed of all ranks.
  double bound = 0;
  std::vector<double> held_bytes, peak_bytes;  // by rank, under the best; as weft plan says them
  int tried = 0;                               // schedules
  bool slow_links = false;                     // the slow pairs of the question count

  // Returns the part by which a step becomes shorter.
  double gain() const { return present > 0 ? 1 - step / present : 0; }
};

// Returns InvalidArgument where the present schedule cannot be simulated with what was measured.
absl::StatusOr<BetterSchedule> FindBetterSchedule(const ReplanQuestion& question,
                                                  const std::function<bool()>& stop = nullptr);

// Returns all work of a step over the speed of all ranks.
double WorkBound(const RankCosts& measured, int microbatches, bool split_backward);

// Says in one line what is better and why, `slow` being the slow links that count: "rank 1 has 0.51 of the
// speed of the fastest; a step takes 33 % less under custom,.. (0.080 s, now 0.120 s)".
std::string Sentence(const BetterSchedule& better, const RankCosts& measured,
                     const std::vector<SlowLink>& slow = {});

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_BETTER_SCHEDULE_H_
