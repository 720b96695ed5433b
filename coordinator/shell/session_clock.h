// Converts the times in a worker's messages to this process's clock, where the worker reads another one.
//
// The records of a run join the jobs of all its workers: the time of a step, timelines, traces. Each machine
// counts from its own boot, so times of two machines mean nothing to each other. Hello names the worker's
// clock; each packet says when it was written, which tells how far the clocks are apart (peer_clock.h). A
// worker of an older release tells neither, and its times stay as they are.
//
// Converted times are late by the least time that a packet of late has taken, some ten microseconds in a
// local network. All times of a message move by the same amount, so durations stay exact. Not thread-safe.
#ifndef WEFT_COORDINATOR_SHELL_SESSION_CLOCK_H_
#define WEFT_COORDINATOR_SHELL_SESSION_CLOCK_H_

#include <cstdint>
#include <string>

#include "base/peer_clock.h"
#include "proto/session/messages.h"

namespace weft {

class SessionClock {
 public:
  // Notes a packet: when it was written, on the worker's clock (0 if it does not say), and when it came.
  void Observe(int64_t sent_ns, int64_t now);
  // Converts the times of a message of that packet, or of one before it. `own` is ClockName() here.
  void Convert(const std::string& own, FromWorker* message);

 private:
  PeerClock peer_;
  bool observed_ = false;
  bool differs_ = false;  // true once the worker has named a clock that is not ours
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_SESSION_CLOCK_H_
