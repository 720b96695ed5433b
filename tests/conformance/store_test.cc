// The conformance suite of stores (coordinator/store/store.h), run on each implementation; and what only the
// one on a disk promises: its lock, a disk without room, its backup, and that no damage of its file is ever
// taken for what was stored.
#include "coordinator/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/sqlite_store.h"
#include "tests/conformance/memory_store.h"
#include "tests/conformance/stored_records.h"
#include "tests/process/etcd_server.h"
#include "tests/test_folder.h"

namespace weft::store_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// One implementation, whose store can be closed and opened again.
class Kind {
 public:
  virtual ~Kind() = default;
  virtual absl::StatusOr<std::unique_ptr<Store>> Open() = 0;
};
class MemoryKind final : public Kind {
 public:
  absl::StatusOr<std::unique_ptr<Store>> Open() override { return std::make_unique<MemoryStore>(state_); }

 private:
  const std::shared_ptr<StoredState> state_ = std::make_shared<StoredState>();
};
class EtcdKind final : public Kind {
 public:
  absl::StatusOr<std::unique_ptr<Store>> Open() override {
    if (etcd_ == nullptr) {
      etcd_ = std::make_unique<EtcdServer>();
      if (!etcd_->Start()) return absl::UnavailableError(EtcdServer::kMissing);
      client_ = *EtcdClient::Make(*ParseAddresses(etcd_->address()));
    }
    std::string leader;
    auto leadership = EtcdLeadership::Try(client_.get(), {"suite/leader", "test"}, &leader);
    if (!leadership.ok()) return leadership.status();
    if (*leadership == nullptr) return absl::AbortedError(leader + " leads");
    return MakeEtcdStore(client_, *std::move(leadership), "suite", kUnix);
  }

 private:
  std::unique_ptr<EtcdServer> etcd_;
  std::shared_ptr<EtcdClient> client_;
};
class SqliteKind final : public Kind {
 public:
  absl::StatusOr<std::unique_ptr<Store>> Open() override {
    return OpenSqliteStore({folder_.path(), kUnix, /*ballast_bytes=*/1 << 16});
  }

 private:
  const TestFolder folder_;
};

class Stores : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "Sqlite") {
      kind_ = std::make_unique<SqliteKind>();
    } else if (kind == "Etcd") {
      kind_ = std::make_unique<EtcdKind>();
    } else {
      kind_ = std::make_unique<MemoryKind>();
    }
    Reopen();
  }
  void Reopen() {
    store_.reset();
    auto opened = kind_->Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    auto loaded = store_->Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    state_ = *std::move(loaded);
  }
  void Commit(const std::vector<Records>& batch) {
    const absl::Status committed = store_->Commit(batch);
    ASSERT_TRUE(committed.ok()) << committed;
    for (const Records& records : batch) Apply(records, &expected_);
  }
  void ExpectAllIsThere() {
    Reopen();
    EXPECT_EQ(TextOf(state_), TextOf(expected_));
  }

  std::unique_ptr<Kind> kind_;
  std::unique_ptr<Store> store_;
  StoredState state_, expected_;
};

TEST_P(Stores, New_IsEmpty) {
  EXPECT_TRUE(state_.runs.empty());
  EXPECT_EQ(state_.epoch, 0u);
  EXPECT_EQ(state_.last_run, 0u);
}

TEST_P(Stores, WhatIsCommitted_IsThereAgainInItsOrder) {
  Commit({Submitted(1, "once"), Submitted(2)});
  for (int step = 0; step < 300; ++step) Commit({Stepped(1, step)});
  Records more;
  more.epoch = 7;
  more.figures = {FiguresOf(1, RunState::kRunning, 250, "why"),
                  FiguresOf(1, RunState::kRunning, 300, "because")};
  more.figures.back().losses = 2;
  more.figures.back().furthest = 260;
  more.figures.back().first_start_ns = 900;
  more.figures.back().epoch = 7;
  more.figures.back().sealed = 299;
  more.attempts = {AttemptOf(1, 6), AttemptOf(1, 7)};
  more.validations.push_back({1, 200, 10, 10, 0.25, {{"accuracy", 0.5}, {"top5", 0.75}}, ""});
  Commit({more, Stepped(1, 300)});
  ExpectAllIsThere();
  ASSERT_EQ(state_.runs.size(), 2u);
  const StoredRun& run = state_.runs.at(1);
  EXPECT_EQ(run.submission.request, "once");
  EXPECT_EQ(run.submission.folder.live, "/out/run/live");
  EXPECT_EQ(run.figures.info.checkpoint_step, 300) << "the last figures of a batch count";
  EXPECT_EQ(run.figures.info.submitted_ns, 5) << "on the monotonic clock again";
  EXPECT_EQ(run.steps.size(), 301u);
  EXPECT_EQ(run.steps[17].end_ns, 1017);
  EXPECT_EQ(run.steps[17].loss, 0.1 * 17);
  EXPECT_EQ(run.steps[17].gradient_norm, 2.5);
  EXPECT_EQ(state_.epoch, 7u);
  EXPECT_EQ(run.attempt.epoch, 7u) << "the last attempt of a batch counts";
  EXPECT_EQ(run.figures.epoch, 7u);
  EXPECT_EQ(run.figures.sealed, 299);
  EXPECT_EQ(run.figures.validated, -1);
  ASSERT_EQ(run.attempt.members.size(), 2u);
  EXPECT_EQ(run.attempt.members[1].worker, "w1");
  EXPECT_EQ(run.attempt.members[1].process, 4);
  EXPECT_EQ(run.attempt.first_token, 12u);
  EXPECT_EQ(run.attempt.schedule, AttemptOf(1, 7).schedule);
  EXPECT_EQ(run.attempt.first_step, 250);
  EXPECT_EQ(run.attempt.reduction, ReductionMode::kFast);
  EXPECT_TRUE(run.attempt.ordered);
  ASSERT_EQ(run.attempt.former.size(), 1u);
  EXPECT_EQ(run.attempt.former[0].wall_seconds, 1.5);
}

TEST_P(Stores, AnAttempt_ReplacesTheOneBefore) {
  Commit({Submitted(1), Submitted(2)});
  for (uint64_t epoch = 2; epoch < 5; ++epoch) {
    Records attempt;
    attempt.epoch = epoch;
    attempt.attempts = {AttemptOf(1, epoch)};
    Commit({attempt});
  }
  ExpectAllIsThere();
  EXPECT_EQ(state_.runs.at(1).attempt.epoch, 4u);
  EXPECT_EQ(state_.runs.at(2).attempt.epoch, 0u);
  Records forgotten;
  forgotten.forgotten = {1};
  Commit({Ended(1)});
  Commit({forgotten});
  ExpectAllIsThere();
}

TEST_P(Stores, AWrittenRun_KeepsItsFiguresWithoutItsSteps) {
  Commit({Submitted(1), Stepped(1, 0), Stepped(1, 1)});
  Commit({Ended(1)});
  Records written;
  written.written = {1, 99};  // it knows nothing of the other
  Commit({written});
  Commit({Stepped(2, 0)});  // of a run that it does not know
  ExpectAllIsThere();
  EXPECT_TRUE(state_.runs.at(1).written);
  EXPECT_TRUE(state_.runs.at(1).steps.empty());
  EXPECT_EQ(state_.runs.at(1).figures.info.state, RunState::kFinished);
}

TEST_P(Stores, AForgottenRun_IsGoneAndItsNumberIsNotGivenAgain) {
  Commit({Submitted(1), Submitted(2), Stepped(2, 0)});
  Records forgotten;
  forgotten.forgotten = {2};
  Commit({Ended(2), forgotten});
  ExpectAllIsThere();
  EXPECT_EQ(state_.runs.size(), 1u);
  EXPECT_EQ(state_.last_run, 2u);
}

TEST_P(Stores, ARunSubmittedAndForgottenInOneBatch_LeavesNothing) {
  Records forgotten;
  forgotten.forgotten = {1};
  Commit({Submitted(1), Stepped(1, 0), Ended(1), forgotten});
  ExpectAllIsThere();
  EXPECT_TRUE(state_.runs.empty());
}

TEST_P(Stores, AGapInItsSteps_IsRefused) {
  Commit({Submitted(1), Stepped(1, 0), Stepped(1, 2)});
  store_.reset();
  auto opened = kind_->Open();
  ASSERT_TRUE(opened.ok());
  const absl::Status loaded = (*opened)->Load().status();
  EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
  EXPECT_THAT(std::string(loaded.message()), HasSubstr("its step 1 is missing"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Stores, testing::Values("Memory", "Sqlite", "Etcd"),
                         [](const auto& kind) { return std::string(kind.param); });

// ---- on a disk

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

SqliteStoreOptions In(const std::string& folder) { return {folder, kUnix, /*ballast_bytes=*/1 << 16}; }

// Opens and loads a store; the sentence of the failure otherwise.
absl::StatusOr<StoredState> LoadFrom(const std::string& folder) {
  auto store = OpenSqliteStore(In(folder));
  if (!store.ok()) return store.status();
  return (*store)->Load();
}

void Fill(Store* store, int runs, int steps) {
  ASSERT_TRUE(store->Load().ok());
  for (int run = 1; run <= runs; ++run) {
    std::vector<Records> batch = {Submitted(run, absl::StrCat("request-", run))};
    for (int step = 0; step < steps; ++step) batch.push_back(Stepped(run, step));
    batch.push_back({});
    batch.back().epoch = 10 + run;
    batch.back().figures.push_back(FiguresOf(run, RunState::kRunning, steps - 1));
    ASSERT_TRUE(store->Commit(batch).ok());
  }
}

TEST(SqliteStore, ASecondCoordinator_IsRefusedUntilTheFirstEnds) {
  const TestFolder folder;
  auto first = OpenSqliteStore(In(folder.path()));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = OpenSqliteStore(In(folder.path()));
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              testing::AllOf(HasSubstr("another coordinator"), HasSubstr(absl::StrCat("pid ", getpid()))));
  first->reset();
  EXPECT_TRUE(OpenSqliteStore(In(folder.path())).ok());
}

TEST(SqliteStore, AFileOfAnotherProgramOrVersion_IsRefused) {
  const TestFolder folder;
  ASSERT_TRUE(OpenSqliteStore(In(folder.path())).ok());
  const auto run = [&](const std::string& sql) {
    auto database = SqliteDatabase::Open(folder.path() + "/store.db", SqliteDatabase::Access::kWrite);
    ASSERT_TRUE(database.ok() && (*database)->Run(sql).ok());
  };
  run("PRAGMA user_version=1");
  EXPECT_TRUE(LoadFrom(folder.path()).ok()) << "one of the version before is taken over";
  run("PRAGMA user_version=3");
  EXPECT_THAT(std::string(LoadFrom(folder.path()).status().message()),
              testing::AllOf(HasSubstr("has the format 3"),
                             HasSubstr("a newer release has written it: start that one")));
  run("PRAGMA application_id=1");
  EXPECT_THAT(std::string(LoadFrom(folder.path()).status().message()), HasSubstr("not a store of Weft's"));
  WriteFile(folder.path() + "/store.db", std::string(5000, 'x'));
  EXPECT_TRUE(absl::IsDataLoss(LoadFrom(folder.path()).status())) << LoadFrom(folder.path()).status();
}

// Each damage is either harmless, or refused with how to go on.
void ExpectNoWrongAnswer(const std::string& file, const std::string& bytes, size_t at,
                         const std::string& expected, const std::string& folder, int* refused) {
  std::string damaged = bytes;
  damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
  WriteFile(folder + "/" + file, damaged);
  const auto loaded = LoadFrom(folder);
  if (loaded.ok()) {
    ASSERT_EQ(TextOf(*loaded), expected) << file << ", byte " << at;
    return;
  }
  ++*refused;
  ASSERT_FALSE(absl::IsResourceExhausted(loaded.status()) || absl::IsUnavailable(loaded.status()))
      << file << ", byte " << at << ": " << loaded.status();
  ASSERT_GT(loaded.status().message().size(), 20u);
}

TEST(SqliteStore, EachByteInSixtyFourTurnedOver_IsHarmlessOrRefused) {
  const TestFolder whole, folder;
  {
    auto store = OpenSqliteStore(In(whole.path()));
    ASSERT_TRUE(store.ok());
    Fill(store->get(), 6, 60);
  }
  const std::string expected = TextOf(*LoadFrom(whole.path()));
  const std::string bytes = ReadFile(whole.path() + "/store.db");
  ASSERT_GT(bytes.size(), 20'000u);
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); at += at < 100 ? 1 : 64) {
    fs::remove_all(folder.path());
    fs::create_directories(folder.path());
    ExpectNoWrongAnswer("store.db", bytes, at, expected, folder.path(), &refused);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(refused, 50) << "most of the file is in use";
}

// The files are as after a kill: the newest records are in the log alone. SQLite takes a damaged frame for
// the log's end.
TEST(SqliteStore, EachByteInSixtyFourOfItsLogTurnedOver_IsHarmlessOrRefused) {
  const TestFolder live, whole, folder;
  auto store = OpenSqliteStore(In(live.path()));
  ASSERT_TRUE(store.ok());
  Fill(store->get(), 3, 20);
  const auto copy = [](const std::string& from, const std::string& to) {
    fs::remove_all(to);
    fs::create_directories(to);
    for (const char* name : {"store.db", "store.db-wal", "commits"})
      fs::copy_file(from + "/" + name, to + "/" + name);
  };
  copy(live.path(), whole.path());
  copy(whole.path(), folder.path());
  const auto before = LoadFrom(folder.path());
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_EQ(before->runs.size(), 3u);
  const std::string expected = TextOf(*before);
  const std::string bytes = ReadFile(whole.path() + "/store.db-wal");
  ASSERT_GT(bytes.size(), 20'000u);
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); at += 64) {
    copy(whole.path(), folder.path());
    ExpectNoWrongAnswer("store.db-wal", bytes, at, expected, folder.path(), &refused);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(refused, 50);
}

TEST(SqliteStore, ADamagedStore_IsRefusedWithHowToRestoreIt) {
  const TestFolder folder, restored;
  const std::string backup = restored.path() + "/backup.db";
  std::string expected;
  {
    auto store = OpenSqliteStore(In(folder.path()));
    ASSERT_TRUE(store.ok());
    Fill(store->get(), 2, 50);
    expected = TextOf(*(*store)->Load());
    const absl::Status copied = BackUpSqliteStore(folder.path(), backup);  // while it is in use
    ASSERT_TRUE(copied.ok()) << copied;
    EXPECT_TRUE(absl::IsAlreadyExists(BackUpSqliteStore(folder.path(), backup)));
    Fill(store->get(), 0, 0);
  }
  std::string bytes = ReadFile(folder.path() + "/store.db");
  const size_t at = bytes.find("request-2");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 3] = 'X';
  WriteFile(folder.path() + "/store.db", bytes);
  const absl::Status refused = LoadFrom(folder.path()).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("run 2"), HasSubstr("checksum"), HasSubstr("--backup")));
  EXPECT_TRUE(absl::IsDataLoss(BackUpSqliteStore(folder.path(), backup + "2"))) << "it copies no damage";
  // Follows the advice of that message.
  fs::remove_all(folder.path());
  fs::create_directories(folder.path());
  fs::copy_file(backup, folder.path() + "/store.db");
  const auto loaded = LoadFrom(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(TextOf(*loaded), expected);
}

TEST(SqliteStore, AFileThatMayNotGrow_RefusesTheBatchAndKeepsTheRest) {
  const TestFolder folder;
  SqliteStoreOptions options = In(folder.path());
  options.max_pages = 12;
  auto store = OpenSqliteStore(options);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Load().ok());
  StoredState expected;
  absl::Status committed;
  for (int run = 1; committed.ok(); ++run) {
    Records records = Submitted(run);
    records.submissions[0].spec = std::string(3000, 'x');
    committed = (*store)->Commit({records});
    if (committed.ok()) Apply(records, &expected);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(committed)) << committed;
  EXPECT_GT(expected.runs.size(), 2u);
  // A commit that needs no more room is stored all the same, and is right.
  const Records ended = Ended(1);
  ASSERT_TRUE((*store)->Commit({ended}).ok());
  Apply(ended, &expected);
  store->reset();
  const auto loaded = LoadFrom(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(TextOf(*loaded), TextOf(expected));
}

// A file system of its own, which is too small.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) {
    mounted_ = mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) std::cerr << "NOTE: no small disk can be mounted: " << std::strerror(errno) << "\n";
  }
  ~SmallDisk() {
    if (mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  const TestFolder folder_;
  bool mounted_ = false;
};

TEST(SqliteStore, AFullDisk_StoresWhatRunsUntilTheBallastIsGoneAndGoesOnWithRoom) {
  const SmallDisk disk("size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "needs root: the store is not tested on a full disk";
  const std::string folder = disk.path() + "/store";
  auto store = OpenSqliteStore({folder, kUnix, /*ballast_bytes=*/256 << 10});
  ASSERT_TRUE(store.ok()) << store.status();
  StoredState expected;
  ASSERT_TRUE((*store)->Load().ok());
  const auto commit = [&](const Records& records) {
    absl::Status committed = (*store)->Commit({records});
    if (committed.ok()) Apply(records, &expected);
    return committed;
  };
  ASSERT_TRUE(commit(Submitted(1)).ok());
  EXPECT_TRUE((*store)->Room().ok());
  {
    std::ofstream filler(disk.path() + "/filler", std::ios::binary);
    while (filler.write(std::string(4096, 'x').data(), 4096).flush()) {
    }
  }
  absl::Status committed;
  int steps = 0;
  while (committed.ok() && steps < 100'000) committed = commit(Stepped(1, steps++));
  EXPECT_TRUE(absl::IsResourceExhausted(committed)) << committed;
  EXPECT_GT(steps, 10) << "the ballast was of use";
  EXPECT_TRUE(absl::IsResourceExhausted((*store)->Room()));
  fs::remove(disk.path() + "/filler");
  EXPECT_TRUE(commit(Stepped(1, steps - 1)).ok()) << "the batch that was refused";
  EXPECT_TRUE((*store)->Room().ok());
  store->reset();
  const auto loaded = LoadFrom(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(TextOf(*loaded), TextOf(expected));
}

}  // namespace
}  // namespace weft::store_test
