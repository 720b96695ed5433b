// Writes the events of a flight ring as text, one a line in the order in which they were noted:
//
//   time=2026-11-22T14:20:11.123456Z event=dump cause=SIGSEGV code=1 program=weft-worker ..
//   time=2026-11-22T14:20:11.098001Z thread=4711 event=job_begins rank=1 kind=forward step=3 ..
//   time=2026-11-22T14:20:11.123456Z event=dump_ends events=4096 overwritten=120 unreadable=0
//
// The form is logfmt, as that of the log. A file without the last line is not whole.
//
// Safe in a signal handler: calls write(2) and the clock, and allocates nothing. Stateless.
#ifndef WEFT_BASE_LOG_FLIGHT_DUMP_H_
#define WEFT_BASE_LOG_FLIGHT_DUMP_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/log/flight_ring.h"

namespace weft {

// Writes the dump to the descriptor. `cause` begins its first line: EventText("dump") with what happened;
// `process` ends it: ` program=weft-worker ..`. `unix_minus_monotonic_ns` is added to the events' times.
// Returns 0, or the errno of what failed.
int WriteFlightDump(int descriptor, const FlightRing& ring, int64_t unix_minus_monotonic_ns,
                    const EventText& cause, absl::string_view process);

}  // namespace weft

#endif  // WEFT_BASE_LOG_FLIGHT_DUMP_H_
