// The worker's end of a session: resumption over broken connections, refusals, and giving up.
#include "proto/wire/session_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/shell/coordinator_server.h"
#include "schedules/families/families.h"
#include "tests/process/breaking_proxy.h"
#include "tests/process/eventually.h"
#include "tests/process/quick_planner.h"
#include "tests/process/scripted_worker.h"
#include "tests/unit/without_terms.h"

namespace weft::session_stream_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kStages = 4, kMicrobatches = 8, kSteps = 1500;

absl::StatusOr<std::shared_ptr<const RunPlan>> Plan(const std::string& spec) {
  return MakeRunPlan("test", spec, WithoutTerms(*MakeSchedule(spec, {}, kStages, kMicrobatches)), kSteps);
}

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return port;
}

struct Server {
  explicit Server(const ProtocolVersions& protocol = kProtocolVersions) {
    CoordinatorServerOptions options;
    options.protocol = protocol;
    options.listen = {"127.0.0.1:0"};
    options.planner = QuickPlanner(Plan);
    options.observer.jobs = [this](const JobsEnded& j) { jobs += j.jobs.size(); };
    options.observer.step = [this](const StepDone&) { ++steps; };
    server = *CoordinatorServer::Start(options);
  }
  std::atomic<size_t> jobs{0};
  std::atomic<int> steps{0};
  std::unique_ptr<CoordinatorServer> server;
};

// Runs jobs over a connection that breaks again and again, by workers that ask for messages for `spin_ns`
// before they wait for them, and checks that each job is done once.
void RunOverBreakingConnection(int64_t spin_ns) {
  Server s;
  BreakingProxy proxy(PortOf(s.server->addresses()[0]));
  ScriptedWorkerOptions direct, broken;
  direct.address = s.server->addresses()[0];
  direct.name = "direct";
  direct.stages = broken.stages = kStages;
  broken.address = proxy.address();
  broken.name = "broken";
  broken.pid = 2;
  direct.spin_ns = broken.spin_ns = spin_ns;
  ScriptedWorker a(direct), b(broken);
  const absl::StatusOr<uint64_t> run = s.server->Submit({"", "1f1b", 2, ""});
  ASSERT_TRUE(run.ok());
  // Each time some steps further on, so that the connection works in between.
  for (int step = 10; step < kSteps - 100; step += kSteps / 12) {
    ASSERT_TRUE(Eventually([&] { return s.steps >= step; })) << s.server->GetRun(*run)->reason;
    proxy.Break();
  }
  ASSERT_TRUE(Eventually([&] { return IsFinal(s.server->GetRun(*run)->state); }));
  const RunInfo info = *s.server->GetRun(*run);
  EXPECT_EQ(info.state, RunState::kFinished) << info.reason;
  EXPECT_EQ(s.jobs, size_t{kSteps} * (2 * kStages * kMicrobatches + kStages));
  EXPECT_GE(proxy.broken(), 5);
  EXPECT_EQ(info.reports.size(), 4u) << "the last messages arrived too";
}

TEST(SessionStream, ConnectionBreaksAgainAndAgain_EveryJobIsDoneOnce) { RunOverBreakingConnection(0); }

TEST(SessionStream, CallersSpinForLongerThanAnswersTake_EveryJobIsDoneOnce) {
  RunOverBreakingConnection(5'000'000);
}

// The turn to poll changes between the threads all the time.
TEST(SessionStream, CallersSpinForAShortWhile_EveryJobIsDoneOnce) { RunOverBreakingConnection(60'000); }

// No thread waits for the descriptor until the worker's spinning ends: nothing may be lost in between.
TEST(SessionStream, CallerWaitsAfterSpinning_DescriptorTellsOfMessages) {
  Server s;
  SessionStreamOptions options;
  options.address = s.server->addresses()[0];
  auto stream = *SessionStream::Open(options);
  std::vector<FromCoordinator> heard;
  const int64_t until = MonotonicNow() + 20'000'000;
  while (MonotonicNow() < until) ASSERT_FALSE(stream->Await(&heard));
  stream->Arm();
  stream->Send(Hello{"w", "h", 1, -1, ""});
  pollfd fd{stream->event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 60'000), 1);
  EXPECT_TRUE(stream->Drain(&heard));
}

TEST(SessionStream, CoordinatorIsDownForAWhile_SessionGoesOn) {
  Server s;
  BreakingProxy proxy(PortOf(s.server->addresses()[0]));
  SessionStreamOptions options;
  options.address = proxy.address();
  auto stream = *SessionStream::Open(options);
  stream->Send(Hello{"w", "h", 1, -1, ""});
  std::vector<FromCoordinator> heard;
  ASSERT_TRUE(Eventually([&] { return stream->Drain(&heard); }));
  EXPECT_TRUE(std::holds_alternative<Welcome>(heard[0]));
  proxy.SetDown(true);
  ASSERT_TRUE(Eventually([&] { return proxy.broken() == 1; }));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_TRUE(stream->status().ok());
  proxy.SetDown(false);
  ASSERT_TRUE(Eventually([&] { return stream->reconnects() == 1; }));
  EXPECT_TRUE(stream->Close(10'000'000'000).ok());
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kCancelled);
}

// Opens a session of a worker that speaks `versions`, and waits until it has been answered or refused.
std::unique_ptr<SessionStream> OpenSpeaking(const Server& server, const ProtocolVersions& versions) {
  SessionStreamOptions options;
  options.address = server.server->addresses()[0];
  options.protocol = versions;
  auto stream = *SessionStream::Open(options);
  stream->Send(Hello{"w", "h", 1, -1, ""});
  std::vector<FromCoordinator> heard;
  EXPECT_TRUE(Eventually([&] { return stream->Drain(&heard) || !stream->status().ok(); }));
  return stream;
}

// Upgrades from release to release: each speaks what the one before it speaks.
TEST(SessionStream, SidesOfTwoReleases_SpeakTheHighestCommonVersion) {
  struct {
    ProtocolVersions worker, coordinator;
    uint32_t spoken;
  } const cases[] = {{{2, 2}, {2, 3}, 2},
                     {{2, 3}, {2, 2}, 2},
                     {{2, 3}, {2, 3}, 3},
                     {{2, 3}, {3, 4}, 3},
                     {{3, 4}, {2, 3}, 3}};
  for (const auto& c : cases) {
    Server server(c.coordinator);
    auto stream = OpenSpeaking(server, c.worker);
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    EXPECT_EQ(stream->protocol(), c.spoken) << c.worker.text() << ", " << c.coordinator.text();
  }
}

TEST(SessionStream, SidesHaveNoVersionInCommon_WorkerHearsBothRanges) {
  Server server({2, 3});
  auto stream = OpenSpeaking(server, {4, 5});
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(stream->status().message()),
      AllOf(HasSubstr("the worker speaks protocol versions 4 to 5, the coordinator versions 2 to 3"),
            HasSubstr("the coordinator is of an older release: upgrade it to one that speaks version 4")));
}

TEST(SessionStream, NobodyListens_GivesUpWithTheAddress) {
  SessionStreamOptions options;
  options.address = absl::StrCat("unix:", testing::TempDir(), "/weft-nobody.sock");
  options.unreachable_ns = 100'000'000;
  auto stream = *SessionStream::Open(options);
  pollfd fd{stream->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 60'000), 1) << "the descriptor tells of the end";
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stream->status().message()),
              HasSubstr(absl::StrCat("coordinator at ", options.address, " unreachable")));
  std::vector<FromCoordinator> heard;
  EXPECT_FALSE(stream->Drain(&heard));
  EXPECT_EQ(poll(&fd, 1, 0), 1) << "and goes on telling";
  EXPECT_EQ(stream->Close(1).code(), absl::StatusCode::kUnavailable);
}

TEST(SessionStream, CoordinatorRestarted_SessionEndsWithTheReason) {
  CoordinatorServerOptions options;
  options.listen = {absl::StrCat("unix:", testing::TempDir(), "/weft-restart-", getpid(), ".sock")};
  options.planner = QuickPlanner(Plan);
  auto server = *CoordinatorServer::Start(options);
  SessionStreamOptions stream_options;
  stream_options.address = server->addresses()[0];
  auto stream = *SessionStream::Open(stream_options);
  stream->Send(Hello{"w", "h", 1, -1, ""});
  std::vector<FromCoordinator> heard;
  ASSERT_TRUE(Eventually([&] { return stream->Drain(&heard); }));
  server.reset();
  server = *CoordinatorServer::Start(options);
  ASSERT_TRUE(Eventually([&] { return !stream->status().ok(); }));
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(stream->status().message()), HasSubstr("restarted"));
  // In its place a new session begins, without what was said in the former one.
  stream->Send(Forgotten{1});
  EXPECT_TRUE(stream->Renew());
  EXPECT_FALSE(stream->Renew()) << "this one has not ended";
  stream->Send(Hello{"w", "h", 1, -1, ""});
  heard.clear();
  ASSERT_TRUE(Eventually([&] { return stream->Drain(&heard); }));
  EXPECT_TRUE(std::holds_alternative<Welcome>(heard[0]));
  EXPECT_TRUE(stream->Close(10'000'000'000).ok());
  EXPECT_FALSE(stream->Renew()) << "it was closed";
}

TEST(SessionStream, NameTaken_IsRefusedWithTheReason) {
  Server s;
  SessionStreamOptions options;
  options.address = s.server->addresses()[0];
  auto first = *SessionStream::Open(options), second = *SessionStream::Open(options);
  first->Send(Hello{"same", "h", 1, -1, ""});
  std::vector<FromCoordinator> heard;
  ASSERT_TRUE(Eventually([&] { return first->Drain(&heard); }));
  second->Send(Hello{"same", "h", 2, -1, ""});
  ASSERT_TRUE(Eventually([&] { return !second->status().ok(); }));
  EXPECT_EQ(second->status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second->status().message()), HasSubstr("same, pid 1"));
  EXPECT_TRUE(first->status().ok());
}

// gRPC would refuse it at the other end, unread and without a word to the coordinator.
TEST(SessionStream, MessageLargerThanAllowed_EndsTheSessionWithItsSize) {
  Server s;
  SessionStreamOptions options;
  options.address = s.server->addresses()[0];
  auto stream = *SessionStream::Open(options);
  stream->Send(Hello{"w", "h", 1, -1, ""});
  std::vector<FromCoordinator> heard;
  ASSERT_TRUE(Eventually([&] { return stream->Drain(&heard); }));
  Report large;
  large.ranks.resize(60'000);
  for (RankReport& rank : large.ranks) rank.busy_seconds[std::string(100, 'x')] = 1;
  stream->Send(std::move(large));
  ASSERT_TRUE(Eventually([&] { return !stream->status().ok(); }));
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(stream->status().message()),
              AllOf(HasSubstr("a message to the peer has "), HasSubstr("at most 4194304 are allowed")));
}

TEST(SessionStream, Close_DeliversWhatWasSent) {
  Server s;
  SessionStreamOptions options;
  options.address = s.server->addresses()[0];
  for (int i = 0; i < 20; ++i) {
    auto stream = *SessionStream::Open(options);
    stream->Send(Hello{"w", "h", 1, -1, ""});  // would be refused if the one before were still there
    EXPECT_TRUE(stream->Close(30'000'000'000).ok()) << i;
  }
}

TEST(SessionStream, Destroyed_AtAnyTime_Ends) {
  Server s;
  SessionStreamOptions options;
  options.address = s.server->addresses()[0];
  for (int i = 0; i < 20; ++i) {
    auto stream = *SessionStream::Open(options);
    stream->Send(Hello{absl::StrCat("w", i), "h", 1, -1, ""});
    absl::SleepFor(absl::Milliseconds(i % 5));
  }
}

}  // namespace
}  // namespace weft::session_stream_test
