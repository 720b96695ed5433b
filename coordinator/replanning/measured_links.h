// Collects the transfers of tensors between the ranks of a run, and tells which links are slow.
//
// A link is that of two ranks, in both directions. It is slow if its tensors take long beside those of
// their size that went over it before, or over most other links. A process that is often stopped sends and
// receives late, so the links of a rank that is slow are not compared: what is wrong is the rank. Where there
// are no others, a link that was slow from the start shows only beside the link that is expected there.
//
// Latency and bandwidth of a link are fitted to its transfers (schedules/simulator/measured_link.h), of its
// two directions to those of the slower one.
//
// Pure; a value of bounded size.
#ifndef WEFT_COORDINATOR_REPLANNING_MEASURED_LINKS_H_
#define WEFT_COORDINATOR_REPLANNING_MEASURED_LINKS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/job.h"
#include "schedules/simulator/measured_link.h"
#include "schedules/simulator/network.h"

namespace weft {

// Identifies a transfer among the others between two ranks in one direction. Its times do not: told again,
// they differ by what has been learnt of the clocks.
struct TransferKey {
  TensorKind tensor = TensorKind::kActivation;
  Job consumer;       // job that needs it
  int32_t index = 0;  // among the tensors of that kind for that job, in the order in which they arrived
  friend auto operator<=>(const TransferKey&, const TransferKey&) = default;
};

class MeasuredTransfers {
 public:
  using Direction = std::pair<Rank, Rank>;  // from, to

  // Adds a transfer, unless it is there. Left out are those without bytes or time, and those beyond what is
  // kept: the first so many in each direction, of so many directions.
  void Add(Rank from, Rank to, const TransferKey& key, const TimedTransfer& transfer);
  void Add(const MeasuredTransfers& others);
  bool empty() const { return directions_.empty(); }
  const std::map<Direction, std::map<TransferKey, TimedTransfer>>& directions() const { return directions_; }

 private:
  std::map<Direction, std::map<TransferKey, TimedTransfer>> directions_;
};

// A slow link as it was measured; a < b.
struct SlowLink : PairLink {
  double times = 1;  // its time for a tensor, over the usual one
};

struct RankLinks {
  MeasuredLink usual;          // a link that is not slow; takes no time if none was measured
  std::vector<SlowLink> slow;  // in order of their ranks
  std::vector<std::pair<Rank, Rank>>
      normal;  // links that were compared and are not slow, the lower rank first
};

// Returns the link of two ranks as it should be, none if that is not known.
using ExpectedLink = std::function<std::optional<MeasuredLink>(Rank a, Rank b)>;

// Tells the links from the transfers of a window. `before`: earlier ones of the same ranks on the same
// machines; `speeds`: of the ranks, as CostsOfJobs tells them; `expected` counts where fewer than two other
// links tell what is usual.
RankLinks LinksOf(const MeasuredTransfers& transfers, const MeasuredTransfers& before,
                  const std::vector<double>& speeds, const ExpectedLink& expected = nullptr);

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_MEASURED_LINKS_H_
