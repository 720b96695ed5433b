// Finds the latency and the bandwidth of a link from measured transfers. Pure.
#ifndef WEFT_CLIENT_FILES_MEASURED_LINK_H_
#define WEFT_CLIENT_FILES_MEASURED_LINK_H_

#include <vector>

#include "client/files/trace_file.h"

namespace weft {

// Returns the median: time that other programs take of a core does not count. 0 for none.
double MedianOf(std::vector<double> values);

// The link that fits best to transfers: a transfer takes `latency` and its bytes over `bandwidth`.
struct MeasuredLink {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes a second; 0 where larger tensors did not take longer
};
MeasuredLink LinkOf(const std::vector<DrawnTransfer>& transfers);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_MEASURED_LINK_H_
