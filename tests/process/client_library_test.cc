// The client library over a real socket, with a server and a scripted worker in this process. What is
// installed is tested by tests/deploy/client_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/process/breaking_proxy.h"
#include "tests/process/command.h"
#include "tests/process/served_runs.h"
#include "weft/client.h"

namespace weft::client_library_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClientLibrary : public ServedRuns {
 protected:
  ClientLibrary() {
    Client::Options of_client;
    of_client.coordinator = server->addresses()[0];
    of_client.call_time = std::chrono::seconds(60);
    client.emplace(*Client::Make(of_client));
  }
  std::optional<Client> client;
};

TEST_F(ClientLibrary, Watch_HearsEachStepAndReturnsTheEnd) {
  Client::Submission submission{"1f1b", 1};
  submission.file = "run.yaml";
  submission.priority = 7;
  const absl::StatusOr<uint64_t> number = client->Submit(submission);
  ASSERT_TRUE(number.ok()) << number.status();
  std::unique_ptr<ScriptedWorker> worker;
  std::vector<Client::Run> heard;
  const absl::StatusOr<Client::Run> ended = client->Watch(*number, [&](const Client::Run& run) {
    if (worker == nullptr) worker = std::make_unique<ScriptedWorker>(worker_options);
    heard.push_back(run);
    return true;
  });
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(heard.front().state, Client::State::kWaiting);
  EXPECT_EQ(heard.front().steps_done, 0);
  EXPECT_FALSE(heard.front().loss.has_value());
  for (int step = 1; step <= kServedSteps; ++step) {
    EXPECT_TRUE(std::any_of(heard.begin(), heard.end(), [&](const Client::Run& run) {
      return run.steps_done == step && run.loss.has_value();
    })) << step;
  }
  EXPECT_EQ(ended->state, Client::State::kFinished);
  EXPECT_TRUE(Client::IsFinal(ended->state));
  EXPECT_EQ(Client::NameOf(ended->state), "finished");
  EXPECT_EQ(ended->steps_done, kServedSteps);
  EXPECT_EQ(ended->id, *number);
  EXPECT_EQ(ended->schedule, "1f1b");
  EXPECT_EQ(ended->file, "run.yaml");
  EXPECT_EQ(ended->priority, 7);
  EXPECT_EQ(ended->ranks, 2);
  EXPECT_EQ(ended->processes, 1);
  EXPECT_GE(ended->ended_ns, ended->started_ns);
  ASSERT_EQ(client->List()->size(), 1u);
  EXPECT_EQ((*client->List())[0].state, Client::State::kFinished);
  EXPECT_EQ(client->Get(*number)->members, std::vector<std::string>{"process 0 (w, pid 1 on host test)"});
  const absl::StatusOr<std::vector<Client::Worker>> workers = client->ListWorkers();
  ASSERT_TRUE(workers.ok() && workers->size() == 1) << workers.status();
  EXPECT_EQ((*workers)[0].name, "w");
  EXPECT_EQ((*workers)[0].host, "test");
}

TEST_F(ClientLibrary, SameRequestTwice_IsOneRun) {
  Client::Submission submission{"1f1b", 1};
  const uint64_t first = *client->Submit(submission);
  EXPECT_NE(*client->Submit(submission), first) << "without a name each is a run of its own";
  submission.request = "mine";
  const uint64_t named = *client->Submit(submission);
  EXPECT_EQ(*client->Submit(submission), named);
  submission.processes = 2;
  EXPECT_EQ(client->Submit(submission).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ClientLibrary, Wait_RunGoesOnBeyondTheTime_IsDeadlineExceeded) {
  const uint64_t run = *client->Submit({"1f1b", 1});  // there is no worker
  const absl::Status waited = client->Wait(run, std::chrono::milliseconds(50)).status();
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr(absl::StrCat("run ", run)));
  EXPECT_EQ(client->Get(run)->state, Client::State::kWaiting);
}

TEST_F(ClientLibrary, Cancel_EndsTheRunAndWaitReturnsIt) {
  const uint64_t run = *client->Submit({"1f1b", 1});
  EXPECT_EQ(client->Cancel(run, "not needed")->state, Client::State::kCancelled);
  const absl::StatusOr<Client::Run> ended = client->Wait(run);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state, Client::State::kCancelled);
  EXPECT_THAT(ended->reason, HasSubstr("not needed"));
}

TEST_F(ClientLibrary, StopFromAnotherThread_EndsTheWatch) {
  const uint64_t run = *client->Submit({"1f1b", 1});
  std::thread stopper;
  const absl::StatusOr<Client::Run> watched = client->Watch(run, [&](const Client::Run&) {
    if (!stopper.joinable()) stopper = std::thread([&] { client->Stop(); });
    return true;
  });
  stopper.join();
  EXPECT_EQ(watched.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientLibrary, UnknownRun_IsNotFoundByEveryMethod) {
  const auto hear = [](const Client::Run&) { return true; };
  Client::LogPlace place;
  for (const absl::Status& status :
       {client->Get(99).status(), client->Cancel(99, "").status(), client->Watch(99, hear).status(),
        client->Wait(99).status(), client->Logs(99, &place).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no run 99"));
  }
}

TEST_F(ClientLibrary, Logs_ContinueBehindThePlace) {
  const uint64_t run = *client->Submit({"1f1b", 1});
  worker_options.fail_after_first = "the loom is broken";
  const ScriptedWorker worker(worker_options);
  const absl::StatusOr<Client::Run> ended = client->Wait(run);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state, Client::State::kFailed);
  Client::LogPlace place;
  const absl::StatusOr<Client::LogPart> part = client->Logs(run, &place);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_TRUE(part->ended);
  ASSERT_FALSE(part->lines.empty());
  EXPECT_EQ(part->lines[0].number, 1u);
  EXPECT_EQ(part->lines[0].writer, "coordinator");
  EXPECT_EQ(place.after, part->lines.back().number);
  EXPECT_TRUE(client->Logs(run, &place)->lines.empty());
}

TEST(ClientLibraryWatch, ConnectionBreaks_GoesOn) {
  const auto server = ServeSchedules("127.0.0.1:0");
  const std::string address = server->addresses()[0];
  BreakingProxy proxy(std::stoi(address.substr(address.rfind(':') + 1)));
  Client client = *Client::Make({proxy.address()});
  const absl::StatusOr<uint64_t> run = client.Submit({"1f1b", 1});
  ASSERT_TRUE(run.ok()) << run.status();
  int heard = 0;
  const absl::StatusOr<Client::Run> ended = client.Watch(*run, [&](const Client::Run&) {
    if (++heard == 1) proxy.Break();
    if (heard == 2) {
      EXPECT_TRUE(server->Cancel(*run, "enough").ok());
    }
    return true;
  });
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state, Client::State::kCancelled);
  EXPECT_GE(heard, 3);
}

TEST(ClientLibraryMake, AddressesThatCannotBe_AreRefusedWithTheReason) {
  const auto status = [](const Client::Options& options) { return Client::Make(options).status(); };
  EXPECT_EQ(status({"nonsense"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({"10.0.0.1:7070"}).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status folder = status({"10.0.0.1:7070", "/nowhere"});
  EXPECT_EQ(folder.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(folder.message()), HasSubstr("/nowhere"));
}

TEST(ClientLibraryReadRunFile, GoodAndWrongFile_JsonWithPathsFromTheRootOrTheLine) {
  const TestFolder folder;
  const std::string text =
      "model: {gpt: {layers: 2, width: 32, heads: 2, context: 32}}\n"
      "data: {text: {path: text.txt}}\n"
      "train: {steps: 5, batch: 8, microbatches: 4}\n"
      "schedule: 1f1b\n";
  const absl::StatusOr<std::string> good =
      Client::ReadRunFile(folder.Write("run.yaml", text + "stages: 2\n"));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT(*good, HasSubstr(absl::StrCat("\"", folder / "text.txt", "\"")));
  const std::string path = folder.Write("wrong.yaml", text + "stages: 200\n");
  const absl::Status wrong = Client::ReadRunFile(path).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), StartsWith(absl::StrCat(path, ":5: stages")));
}

}  // namespace
}  // namespace weft::client_library_test
