// Finds the latency and the bandwidth of a link from measured transfers, in the terms in which the simulator
// counts them: bytes leave one after the other at the bandwidth, and arrive by the latency later.
//
// Pure.
#ifndef WEFT_SCHEDULES_SIMULATOR_MEASURED_LINK_H_
#define WEFT_SCHEDULES_SIMULATOR_MEASURED_LINK_H_

#include <cstdint>
#include <vector>

namespace weft {

// A tensor on its way, by the clock of the rank that received it.
struct TimedTransfer {
  double start = 0, end = 0;  // seconds
  int64_t bytes = 0;
};

// Bytes that went over a link without a pause.
struct Burst {
  double bytes = 0, seconds = 0;
};

// Joins transfers of one direction that overlap: tensors that wait for each other take longer than their
// bytes do, and all of them together as long as one of all their bytes. Those without bytes or time are left
// out.
std::vector<Burst> BurstsOf(std::vector<TimedTransfer> of_direction);

struct MeasuredLink {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes a second; 0 where larger tensors did not take longer, or for no burst
  // Returns the time of a transfer.
  double SecondsOf(double bytes) const { return latency + (bandwidth > 0 ? bytes / bandwidth : 0); }
};

// Returns the link that fits best. Bursts of one size, or of sizes within a factor of two, do not tell the
// latency: then all of their time counts as that of their bytes.
MeasuredLink LinkOf(const std::vector<Burst>& bursts);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_MEASURED_LINK_H_
