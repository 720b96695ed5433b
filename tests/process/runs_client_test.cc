// The run API over a real socket: client library, server, scripted worker.
#include "client/runs/runs_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/process/breaking_proxy.h"
#include "tests/process/served_runs.h"

namespace weft::runs_client_test {
namespace {

using ::testing::HasSubstr;

class RunsClientTest : public ServedRuns {
 protected:
  RunsClientTest() { client = *RunsClient::Create(server->addresses()[0], {}, 60'000'000'000); }
  std::unique_ptr<RunsClient> client;
};

TEST_F(RunsClientTest, SubmitWatchGetList_TellTheSameStory) {
  const absl::StatusOr<uint64_t> run = client->Submit({"r-1", "1f1b", 1, ""});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(*client->Submit({"r-1", "1f1b", 1, ""}), *run);
  std::unique_ptr<ScriptedWorker> worker;
  std::vector<RunState> states;
  std::vector<int> steps;
  const absl::Status watched = client->Watch(*run, [&](const RunEvent& event) {
    if (worker == nullptr) worker = std::make_unique<ScriptedWorker>(worker_options);
    if (const auto* info = std::get_if<RunInfo>(&event)) {
      states.push_back(info->state);
    } else {
      steps.push_back(std::get<StepDone>(event).step);
    }
    return true;
  });
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(states.front(), RunState::kWaiting);
  EXPECT_EQ(states.back(), RunState::kFinished);
  EXPECT_EQ(steps, (std::vector<int>{0, 1, 2, 3, 4}));

  const RunInfo info = *client->Get(*run);
  EXPECT_EQ(info.state, RunState::kFinished);
  EXPECT_EQ(info.schedule, "1f1b");
  EXPECT_EQ(info.reports.size(), 2u);
  EXPECT_GT(info.submitted_ns, 1'500'000'000ll * 1'000'000'000) << "a time since 1970";
  EXPECT_GE(info.ended_ns, info.started_ns);
  EXPECT_NEAR(static_cast<double>(info.ended_ns), static_cast<double>(absl::GetCurrentTimeNanos()), 600e9);
  const auto list = client->List();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_TRUE((*list)[0].reports.empty());

  EXPECT_EQ(client->Cancel(*run, "too late", /*save=*/false)->state, RunState::kFinished);
}

TEST_F(RunsClientTest, WatchAfterTheEnd_SaysItAndEnds) {
  const uint64_t run = *client->Submit({"", "1f1b", 1, ""});
  ASSERT_TRUE(client->Cancel(run, "no need", /*save=*/false).ok());
  int events = 0;
  EXPECT_TRUE(client
                  ->Watch(run,
                          [&](const RunEvent& e) {
                            return ++events, std::get<RunInfo>(e).state == RunState::kCancelled;
                          })
                  .ok());
  EXPECT_EQ(events, 1);
}

TEST_F(RunsClientTest, Errors_CarryTheirCodes) {
  EXPECT_EQ(client->Submit({"", "no-such", 1, ""}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->Submit({"Bad Name", "1f1b", 1, ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Submit({"", "1f1b", 3, ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Submit({"", std::string((1 << 20) + 1, 'x'), 1, ""}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Get(99).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->Cancel(99, "", /*save=*/false).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->Watch(99, [](const RunEvent&) { return true; }).code(), absl::StatusCode::kNotFound);
}

TEST_F(RunsClientTest, Watch_CallbackHadEnough_Ends) {
  const uint64_t run = *client->Submit({"", "1f1b", 1, ""});
  EXPECT_EQ(client->Watch(run, [](const RunEvent&) { return false; }).code(), absl::StatusCode::kCancelled);
}

TEST_F(RunsClientTest, Watch_StoppedByAnotherThread_Ends) {
  const uint64_t run = *client->Submit({"", "1f1b", 1, ""});
  std::thread stopper;
  const absl::Status watched = client->Watch(run, [&](const RunEvent&) {
    if (!stopper.joinable()) stopper = std::thread([&] { client->Stop(); });
    return true;
  });
  stopper.join();
  EXPECT_EQ(watched.code(), absl::StatusCode::kCancelled);
}

TEST_F(RunsClientTest, ServerStopsUnderAWatch_WatcherHearsTheEnd) {
  const uint64_t run = *client->Submit({"", "1f1b", 1, ""});
  std::thread stopper;
  RunState last = RunState::kSubmitted;
  client
      ->Watch(run,
              [&](const RunEvent& e) {
                if (const auto* info = std::get_if<RunInfo>(&e)) last = info->state;
                if (!stopper.joinable()) stopper = std::thread([&] { server->Stop("test"); });
                return true;
              })
      .IgnoreError();
  stopper.join();
  EXPECT_EQ(last, RunState::kFailed);
}

TEST(RunsClient, NobodyListens_IsUnavailableWithTheAddress) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/weft-nobody.sock");
  auto client = *RunsClient::Create(address);
  const absl::Status s = client->List().status();
  EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(s.message()), HasSubstr(absl::StrCat("coordinator at ", address, " unreachable")));
  EXPECT_FALSE(RunsClient::Create("nonsense").ok());
}

TEST_F(RunsClientTest, ListWorkers_SaysWhoIsThereAndWhatItDoes) {
  EXPECT_TRUE(client->ListWorkers()->empty());
  const ScriptedWorker worker(worker_options);
  std::vector<WorkerInfo> workers;
  for (int i = 0; i < 6000 && workers.empty(); ++i, absl::SleepFor(absl::Milliseconds(10)))
    workers = *client->ListWorkers();
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].name, "w");
  EXPECT_EQ(workers[0].host, "test");
  EXPECT_EQ(workers[0].pid, 1);
  EXPECT_EQ(workers[0].process, 0);
  EXPECT_EQ(workers[0].state, "free");
  EXPECT_EQ(workers[0].run, 0u);
}

// A run goes on while the way to its coordinator is broken, and so does who watches it.
TEST(FollowRun, ConnectionBreaks_WatchingGoesOn) {
  const auto server = ServeSchedules("127.0.0.1:0");
  const std::string address = server->addresses()[0];
  BreakingProxy proxy(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto client = *RunsClient::Create(proxy.address());
  const uint64_t run = *server->Submit({"", "1f1b", 1, ""});
  int heard = 0, lost = 0;
  RunState last = RunState::kSubmitted;
  const auto hear = [&](const RunEvent& event) {
    last = std::get<RunInfo>(event).state;
    if (++heard < 3) proxy.Break();
    if (heard == 3) proxy.SetDown(true);
    return true;
  };
  const auto again = [&] {
    if (++lost < 4) return;
    EXPECT_TRUE(server->Cancel(run, "enough").ok());
    proxy.SetDown(false);
  };
  const absl::Status followed = FollowRun(*client, run, /*known=*/false, 600'000'000'000, hear, again);
  EXPECT_TRUE(followed.ok()) << followed;
  EXPECT_EQ(last, RunState::kCancelled);
  EXPECT_GE(heard, 4);
}

// A coordinator without a store counts its runs from 1 again.
TEST(FollowRun, AnotherRunHasItsNumber_EndsAndHearsNothingOfThat) {
  auto server = ServeSchedules("127.0.0.1:0");
  const std::string address = server->addresses()[0];
  BreakingProxy proxy(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto client = *RunsClient::Create(proxy.address());
  const uint64_t run = *server->Submit({"", "1f1b", 1, ""});
  const std::string run_id = client->Get(run)->run_id;
  EXPECT_EQ(run_id.size(), 32u);
  int heard = 0;
  const auto hear = [&](const RunEvent& event) {
    EXPECT_EQ(std::get<RunInfo>(event).run_id, run_id);
    ++heard;
    proxy.SetDown(true);
    return true;
  };
  const auto again = [&] {
    server.reset();
    server = ServeSchedules(address);
    EXPECT_EQ(*server->Submit({"", "1f1b", 1, ""}), run);
    proxy.SetDown(false);
  };
  const absl::Status followed = FollowRun(*client, run, /*known=*/false, 600'000'000'000, hear, again);
  EXPECT_TRUE(absl::IsNotFound(followed)) << followed;
  EXPECT_THAT(std::string(followed.message()), HasSubstr("the coordinator was restarted"));
  EXPECT_EQ(heard, 1);
}

TEST(FollowRun, NobodyThere_FailsAtOnce) {
  const auto client = *RunsClient::Create(absl::StrCat("unix:", testing::TempDir(), "/weft-none.sock"));
  const auto hear = [](const RunEvent&) { return true; };
  EXPECT_EQ(FollowRun(*client, 1, /*known=*/false, INT64_MAX, hear, [] {}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(SubmitPatiently(*client, {"r", "1f1b", 1, ""}, INT64_MAX).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(FollowRun, CoordinatorStaysAway_GivesUpAfterThePatience) {
  const auto client = *RunsClient::Create(absl::StrCat("unix:", testing::TempDir(), "/weft-none.sock"));
  int lost = 0;
  const auto hear = [](const RunEvent&) { return true; };
  EXPECT_EQ(FollowRun(*client, 1, /*known=*/true, 600'000'000, hear, [&] { ++lost; }).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_GE(lost, 1);
}

}  // namespace
}  // namespace weft::runs_client_test
