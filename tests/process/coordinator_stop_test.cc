// A coordinator that stops while workers do not listen: their sessions are cut, and the process goes on.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "coordinator/shell/coordinator_server.h"
#include "gtest/gtest.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_stream.h"

namespace weft::coordinator_stop_test {
namespace {

// Stops a coordinator with sessions that do not listen.
void StopBesideSessions(int round) {
  CoordinatorServerOptions options;
  options.listen = {absl::StrCat("unix:/tmp/weft-stop-", getpid(), "-", round, ".sock")};
  options.planner = [](const std::string&) { return absl::UnimplementedError("no runs here"); };
  int joined = 0;
  Mutex mu;
  CondVar changed;
  options.observer.worker = [&](const WorkerChange& change) {
    MutexLock lock(mu);
    joined += change.kind == WorkerChange::Kind::kJoined ? 1 : 0;
    changed.SignalAll();
  };
  auto server = CoordinatorServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  constexpr int kSessions = 16;
  std::vector<std::unique_ptr<SessionStream>> streams;
  for (int i = 0; i < kSessions; ++i) {
    SessionStreamOptions stream;
    stream.address = (*server)->addresses()[0];
    streams.push_back(*SessionStream::Open(stream));
    streams.back()->Send(Hello{absl::StrCat("worker-", i), "test", i + 1, -1, "nowhere"});
  }
  {
    MutexLock lock(mu);
    const int64_t deadline = MonotonicNow() + 60'000'000'000;
    while (joined < kSessions && MonotonicNow() < deadline) {
      changed.WaitWithTimeout(mu, deadline - MonotonicNow());
    }
    ASSERT_EQ(joined, kSessions);
  }
  (*server)->Stop("the test stops it");
  server->reset();
}

// The end of many sessions' reads meets the end of the queue; gRPC aborts the process if a call goes on after
// it. Each coordinator waits two seconds for its sessions, so all of them wait at once.
TEST(CoordinatorServer_Stop, SessionsThatDoNotListen_AreCutInOrder) {
  std::vector<std::thread> rounds;
  for (int round = 0; round < 8; ++round) rounds.emplace_back(StopBesideSessions, round);
  for (std::thread& round : rounds) round.join();
}

}  // namespace
}  // namespace weft::coordinator_stop_test
