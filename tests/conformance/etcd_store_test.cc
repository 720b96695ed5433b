// Tests what only the store in etcd promises, beyond the suite of store_test.cc: a former leader stores
// nothing, batches of any size, and an etcd that is away for a while.
#include "coordinator/store/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "tests/conformance/stored_records.h"
#include "tests/process/etcd_server.h"

namespace weft::etcd_store_test {
namespace {

using ::testing::HasSubstr;

class EtcdStores : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(etcd_.Start()) << EtcdServer::kMissing;
    client_ = *EtcdClient::Make(*ParseAddresses(etcd_.address()));
  }

  std::unique_ptr<EtcdLeadership> Try(const std::string& name, std::function<void()> lost = nullptr) {
    std::string leader;
    auto leadership = EtcdLeadership::Try(client_.get(), {"test/leader", name, 2, std::move(lost)}, &leader);
    EXPECT_TRUE(leadership.ok()) << leadership.status();
    return leadership.ok() ? *std::move(leadership) : nullptr;
  }
  std::unique_ptr<Store> Open(std::unique_ptr<EtcdLeadership> leadership) {
    auto store = MakeEtcdStore(client_, std::move(leadership), "test", kUnix);
    auto state = store->Load();
    EXPECT_TRUE(state.ok()) << state.status();
    return store;
  }

  EtcdServer etcd_;
  std::shared_ptr<EtcdClient> client_;
};

TEST_F(EtcdStores, ASecondCoordinator_LeadsWhenTheFirstGivesUp) {
  auto first = Try("first");
  ASSERT_NE(first, nullptr);
  std::string leader;
  const auto second = EtcdLeadership::Try(client_.get(), {"test/leader", "second"}, &leader);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, nullptr);
  EXPECT_EQ(leader, "first");
  first.reset();
  EXPECT_NE(Try("second"), nullptr);
}

TEST_F(EtcdStores, HeadOfALaterFormat_IsRefusedAndNotCalledDamaged) {
  auto leadership = Try("leader");
  ASSERT_NE(leadership, nullptr);
  const std::string body = "1 1 3";
  const uint64_t checksum = Fnv1a().Add(body).hash();
  const std::string value(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  ASSERT_GT(*client_->ChangeIf(leadership->token(), {{"test/head", absl::StrCat(value, body), ""}}), 0);
  const absl::Status loaded = MakeEtcdStore(client_, std::move(leadership), "test", kUnix)->Load().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded)) << loaded;
  EXPECT_THAT(std::string(loaded.message()), HasSubstr("test/head has the format 3"));
}

TEST_F(EtcdStores, AFormerLeader_StoresNothing) {
  auto leadership = Try("former");
  ASSERT_NE(leadership, nullptr);
  const EtcdCondition former_token = leadership->token();
  const auto former = Open(std::move(leadership));
  ASSERT_TRUE(former->Commit({Submitted(1)}).ok());
  // Removes the leader's key, as the end of its lease would.
  ASSERT_GT(*client_->ChangeIf(former_token, {{"test/leader", "", "test/leader0"}}), 0);
  const auto leader = Open(Try("leader"));
  ASSERT_TRUE(leader->Commit({Stepped(1, 0)}).ok());
  const absl::Status refused = former->Commit({Stepped(1, 0), Stepped(1, 1), Submitted(2)});
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another coordinator leads"));
  const auto state = leader->Load();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->runs.size(), 1u);
  EXPECT_EQ(state->runs.at(1).steps.size(), 1u);
}

TEST_F(EtcdStores, ABatchBeyondEtcdsBounds_IsStoredInParts) {
  const auto store = Open(Try("leader"));
  std::vector<Records> batch;
  for (int run = 1; run <= 8; ++run) {
    batch.push_back(Submitted(run));
    batch.back().submissions[0].spec = std::string(300'000, 'x');
  }
  for (int step = 0; step < 1000; ++step) batch.push_back(Stepped(3, step));
  const absl::Status committed = store->Commit(batch);
  ASSERT_TRUE(committed.ok()) << committed;
  StoredState expected;
  for (const Records& records : batch) Apply(records, &expected);
  const auto state = store->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(TextOf(*state), TextOf(expected));
}

// One answer of etcd has up to 500 keys, and a message at most 16 MiB.
TEST_F(EtcdStores, RowsBeyondTheBoundOfAMessage_AreLoadedInSmallerPages) {
  const auto store = Open(Try("leader"));
  constexpr uint64_t kRuns = 20;
  for (uint64_t run = 1; run <= kRuns; ++run) {
    Records records = Submitted(run);
    records.submissions[0].spec = std::string(1 << 20, 'x');  // the largest that is taken in
    const absl::Status committed = store->Commit({records});
    ASSERT_TRUE(committed.ok()) << committed;
  }
  const auto state = store->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_EQ(state->runs.size(), kRuns);
  for (const auto& [id, run] : state->runs) EXPECT_EQ(run.submission.spec.size(), size_t{1} << 20);
}

TEST_F(EtcdStores, LargestSubmissionInABatchOfOthers_IsStored) {
  const auto store = Open(Try("leader"));
  std::vector<Records> batch;
  for (const size_t bytes : {100'000u, 400'000u, 1'048'576u, 1'048'576u}) {
    batch.push_back(Submitted(batch.size() + 1));
    batch.back().submissions[0].spec = std::string(bytes, 'x');
  }
  const absl::Status committed = store->Commit(batch);
  EXPECT_TRUE(committed.ok()) << committed;
}

// Neither ends the coordinator, nor passes for an etcd that is full.
TEST_F(EtcdStores, ReportsBeyondTheBoundOfARow_AreLeftOutAndTheRunIsStored) {
  const auto store = Open(Try("leader"));
  ASSERT_TRUE(store->Commit({Submitted(1)}).ok());
  for (const size_t bytes : {size_t{1'700'000}, size_t{3'000'000}}) {
    RankReport report;
    report.idle_seconds[std::string(bytes, 'x')] = 1;
    Records records;
    records.attempts.push_back(AttemptOf(1, 2));
    records.attempts[0].former = {report};
    records.figures.push_back(FiguresOf(1, RunState::kRunning));
    records.figures[0].info.reports = {report};
    const absl::Status committed = store->Commit({records});
    ASSERT_TRUE(committed.ok()) << committed;
    const auto state = store->Load();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->runs.at(1).figures.info.state, RunState::kRunning);
    EXPECT_TRUE(state->runs.at(1).figures.info.reports.empty());
    EXPECT_EQ(state->runs.at(1).attempt.members.size(), 2u);
    EXPECT_TRUE(state->runs.at(1).attempt.former.empty());
  }
}

// A standby that ended for an etcd without room would not be there when there is some.
TEST(EtcdLeadership, FailureThatPasses_IsStoodBy) {
  for (const absl::Status& passes :
       {absl::UnavailableError(""), absl::ResourceExhaustedError("no space"), absl::InternalError("")})
    EXPECT_TRUE(MayLeadLater(passes)) << passes;
  for (const absl::Status& stays :
       {absl::PermissionDeniedError(""), absl::UnauthenticatedError(""), absl::FailedPreconditionError(""),
        absl::DataLossError(""), absl::InvalidArgumentError(""), absl::UnimplementedError("")})
    EXPECT_FALSE(MayLeadLater(stays)) << stays;
}

TEST_F(EtcdStores, EtcdAwayForAWhile_CommitsWait) {
  const auto store = Open(Try("leader"));
  ASSERT_TRUE(store->Commit({Submitted(1)}).ok());
  etcd_.Signal(SIGSTOP);
  absl::Status committed;
  std::thread writer([&] { committed = store->Commit({Stepped(1, 0)}); });
  // Longer than a call may take, and than the lease lasts; a stopped etcd does not count that.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  etcd_.Signal(SIGCONT);
  writer.join();
  // Whether the lease has ended meanwhile is etcd's to say. A writer that is told so asks no further: etcd
  // may have made the commit in a call that was not answered in time. What is committed is there.
  EXPECT_TRUE(committed.ok() || absl::IsAborted(committed)) << committed;
  const auto state = store->Load();
  ASSERT_TRUE(state.ok());
  EXPECT_GE(state->runs.at(1).steps.size(), committed.ok() ? 1u : 0u);
  EXPECT_LE(state->runs.at(1).steps.size(), 1u);
}

// gRPC gets on with a connection while a thread waits for it. Calls with pauses between them, as those of a
// coordinator that stands by, must do that.
TEST_F(EtcdStores, EtcdDoesNotAnswerFirst_CallsWithPausesReachItLater) {
  etcd_.Signal(SIGSTOP);  // its port takes connections, and nobody answers
  const auto client = *EtcdClient::Make(*ParseAddresses(etcd_.address()));
  absl::Status read;
  const auto try_often = [&](int times) {
    for (int i = 0; i < times; ++i) {
      read = client->Read("test/leader").status();
      if (read.ok()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  };
  try_often(4);
  EXPECT_TRUE(absl::IsUnavailable(read)) << read;
  etcd_.Signal(SIGCONT);
  try_often(100);
  EXPECT_TRUE(read.ok()) << read;
}

TEST_F(EtcdStores, ALeaseThatIsGone_IsToldOnce) {
  std::atomic<int> lost{0};
  const auto leadership = Try("leader", [&] { ++lost; });
  ASSERT_NE(leadership, nullptr);
  ASSERT_EQ(Command::Run({"/usr/bin/env", "ETCDCTL_API=3", "/bin/sh", "-c",
                          absl::StrCat("etcdctl --endpoints ", etcd_.address(),
                                       " lease list | tail -1 | xargs etcdctl --endpoints ", etcd_.address(),
                                       " lease revoke")})
                .code,
            0);
  for (int i = 0; i < 1000 && lost == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(lost, 1);
}

TEST(EtcdPlace, Forms_AreTakenOrRefused) {
  EXPECT_TRUE(IsEtcdPlace("etcd://a:1"));
  EXPECT_FALSE(IsEtcdPlace("/var/lib/etcd"));
  const auto place = ParseEtcdPlace("etcd://10.0.0.1:2379,10.0.0.2:2379/weft/blue");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->endpoints.size(), 2u);
  EXPECT_EQ(place->leader_key(), "weft/blue/leader");
  EXPECT_EQ(ParseEtcdPlace("etcd://etcd.example.org:2379")->prefix, "weft");
  for (const char* wrong : {"etcd://", "etcd://a", "etcd://a:1,b:2", "etcd://a:1/", "etcd://a:1/b/"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseEtcdPlace(wrong).status())) << wrong;
}

}  // namespace
}  // namespace weft::etcd_store_test
