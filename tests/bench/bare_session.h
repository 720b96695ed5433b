// Measures what gRPC itself takes for a round trip of a session: the same messages in a stream of the same
// method, with no link, queue or core behind it.
//
// Both ends wait in Next of their completion queues, on the thread that reads and answers. The floor for
// session_bench.
#ifndef WEFT_TESTS_BENCH_BARE_SESSION_H_
#define WEFT_TESTS_BENCH_BARE_SESSION_H_

#include <functional>
#include <string>
#include <vector>

namespace weft {

// Listens, tells its address, and answers each message of the one stream with a grant of one job. Does not
// return.
[[noreturn]] void ServeBareSession(const std::string& listen,
                                   const std::function<void(const std::string&)>& listening);

// Sends so many messages with one job each, the next when the answer to the last is there. Returns the time
// of each round trip in microseconds. `spin`: asks the queue again and again instead of waiting in it.
std::vector<double> BareRoundTrips(const std::string& address, int trips, bool spin);

}  // namespace weft

#endif  // WEFT_TESTS_BENCH_BARE_SESSION_H_
