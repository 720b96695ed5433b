#include "coordinator/shell/trace_reader.h"

#include <utility>

#include "base/threads.h"

namespace weft {

TraceReader::~TraceReader() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.SignalAll();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mu_);
  for (Request& r : waiting_) r.done(absl::UnavailableError("the coordinator has stopped"));
}

bool TraceReader::Read(uint64_t run, std::string output, Done done) {
  MutexLock lock(mu_);
  if (waiting_.size() >= kMaxWaiting) return false;
  waiting_.push_back({run, std::move(output), std::move(done)});
  if (!thread_.joinable()) thread_ = StartThread([this] { ReadAll(); });
  wake_.SignalAll();
  return true;
}

void TraceReader::ReadAll() {
  while (true) {
    Request request;
    {
      MutexLock lock(mu_);
      while (!stopping_ && waiting_.empty()) wake_.Wait(mu_);
      if (stopping_) return;
      request = std::move(waiting_.front());
      waiting_.pop_front();
    }
    request.done(source_(request.run, request.output));
  }
}

}  // namespace weft
