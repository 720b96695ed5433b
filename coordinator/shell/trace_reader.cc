#include "coordinator/shell/trace_reader.h"

#include <optional>
#include <utility>

#include "base/threads.h"

namespace weft {

TraceReader::~TraceReader() {
  requests_.Stop();
  if (thread_.joinable()) thread_.join();
  for (Request& r : requests_.TakeRest()) r.done(absl::UnavailableError("the coordinator has stopped"));
}

bool TraceReader::Read(uint64_t run, std::string output, Done done) {
  if (!thread_.joinable()) thread_ = StartThread([this] { ReadAll(); });
  Request request{run, std::move(output), std::move(done)};
  return requests_.Add(request);
}

void TraceReader::ReadAll() {
  while (std::optional<Request> request = requests_.Take())
    request->done(source_(request->run, request->output));
}

}  // namespace weft
