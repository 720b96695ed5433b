// Reads traces of runs off the loop's thread: one of many jobs takes a second to draw, and that of a run that
// has ended lies on a disk.
//
// One at a time; at most kMaxWaiting requests wait (Read returns false then), since each answer may have some
// ten megabytes. Destruction waits for the one under way, and answers the others with Unavailable.
#ifndef WEFT_COORDINATOR_SHELL_TRACE_READER_H_
#define WEFT_COORDINATOR_SHELL_TRACE_READER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "coordinator/shell/request_queue.h"
#include "proto/session/run_trace.h"

namespace weft {

class TraceReader {
 public:
  static constexpr size_t kMaxWaiting = 8;
  // Returns the trace of a run whose folder is `output`.
  using Source = std::function<absl::StatusOr<RunTrace>(uint64_t run, const std::string& output)>;
  using Done = std::function<void(absl::StatusOr<RunTrace>)>;

  explicit TraceReader(Source source) : source_(std::move(source)) {}
  ~TraceReader();

  // Reads a trace. `done` is called once, on this object's thread or in the destructor.
  bool Read(uint64_t run, std::string output, Done done);

 private:
  struct Request {
    uint64_t run = 0;
    std::string output;
    Done done;
  };
  void ReadAll();

  const Source source_;
  RequestQueue<Request> requests_{kMaxWaiting};
  std::thread thread_;  // begins with the first request
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_TRACE_READER_H_
