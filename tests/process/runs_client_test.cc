// The run API over a real socket: client library, server, scripted worker.
#include "client/runs_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/shell/coordinator_server.h"
#include "schedules/families.h"
#include "tests/process/scripted_worker.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<const RunPlan>> Plan(const std::string& spec) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(spec, {}, 2, 4);
  if (!schedule.ok()) return schedule.status();
  return MakeRunPlan("test", spec, *std::move(schedule), 5);
}

struct RunsClientTest : ::testing::Test {
  RunsClientTest() {
    CoordinatorServerOptions options;
    options.listen = {absl::StrCat("unix:", testing::TempDir(), "/weft-runs-", getpid(), ".sock")};
    options.planner = Plan;
    server = *CoordinatorServer::Start(options);
    client = *RunsClient::Create(server->addresses()[0], 60'000'000'000);
    worker_options.address = server->addresses()[0];
    worker_options.name = std::string("w");
    worker_options.stages = 2;
  }
  std::unique_ptr<CoordinatorServer> server;
  std::unique_ptr<RunsClient> client;
  ScriptedWorkerOptions worker_options;
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

  EXPECT_EQ(client->Cancel(*run, "too late")->state, RunState::kFinished);
}

TEST_F(RunsClientTest, WatchAfterTheEnd_SaysItAndEnds) {
  const uint64_t run = *client->Submit({"", "1f1b", 1, ""});
  ASSERT_TRUE(client->Cancel(run, "no need").ok());
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
  EXPECT_EQ(client->Cancel(99, "").status().code(), absl::StatusCode::kNotFound);
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

}  // namespace
}  // namespace weft
