// Group commit, and a store that is full or fails (coordinator/store/store_writer.h).
#include "coordinator/store/store_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "tests/conformance/held_store.h"

namespace weft::store_writer_test {
namespace {

using ::testing::ElementsAre;

class StoreWriterTest : public testing::Test {
 protected:
  StoreWriterTest() {
    auto store = std::make_unique<HeldStore>();
    store_ = store.get();
    StoreWriterOptions options;
    options.failed = [this](const absl::Status& failure) {
      failure_ = failure;
      failed_.Notify();
    };
    options.metrics = &metrics_;
    writer_ = std::make_unique<StoreWriter>(std::move(store), std::move(options));
  }
  void Write(int number) {
    Records records;
    records.epoch = number;
    writer_->Write(std::move(records), [this, number] {
      MutexLock lock(mu_);
      durable_.push_back(number);
    });
  }
  std::vector<int> durable() {
    MutexLock lock(mu_);
    return durable_;
  }

  Metrics metrics_;
  HeldStore* store_ = nullptr;
  absl::Status failure_;
  Notification failed_;
  Mutex mu_;
  std::vector<int> durable_;
  std::unique_ptr<StoreWriter> writer_;
};

TEST_F(StoreWriterTest, RecordsThatComeDuringACommit_AreCommittedTogether) {
  Write(1);
  store_->AwaitCommits(1);
  for (const int number : {2, 3, 4}) Write(number);
  EXPECT_TRUE(durable().empty()) << "nothing is durable before its commit has ended";
  store_->LetGo(2);
  writer_->Stop();
  EXPECT_THAT(store_->sizes(), ElementsAre(1, 3));
  EXPECT_THAT(durable(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(metrics_.Text(), testing::HasSubstr("weft_store_commits_total 2"));
}

TEST_F(StoreWriterTest, AFullStore_IsTriedAgainAndLosesNothing) {
  Write(1);
  store_->AwaitCommits(1);
  store_->LetGo(1, absl::ResourceExhaustedError("no room"));
  store_->AwaitCommits(2);
  EXPECT_TRUE(absl::IsResourceExhausted(writer_->Room()));
  EXPECT_TRUE(durable().empty());
  Write(2);
  store_->LetGo(3);
  store_->AwaitCommits(3);
  writer_->Stop();
  EXPECT_THAT(durable(), ElementsAre(1, 2));
  EXPECT_TRUE(writer_->Room().ok());
}

TEST_F(StoreWriterTest, AFailedStore_ReportsNothingAsDurableAndSaysSoOnce) {
  Write(1);
  store_->AwaitCommits(1);
  Write(2);
  store_->LetGo(2, absl::InternalError("the disk is broken"));
  failed_.Wait();
  Write(3);
  writer_->Stop();
  EXPECT_TRUE(durable().empty());
  EXPECT_THAT(store_->sizes(), ElementsAre(1)) << "a store that failed is not used again";
  EXPECT_EQ(failure_.message(), "the disk is broken");
}

}  // namespace
}  // namespace weft::store_writer_test
