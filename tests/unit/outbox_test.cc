#include "worker/shell/loop/outbox.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::outbox_test {
namespace {

using ::testing::ElementsAre;

class KeptLink final : public CoordinatorLink {
 public:
  void Send(FromWorker message) override {
    if (on_send) on_send();
    if (const auto* completions = std::get_if<Completions>(&message)) {
      sent.push_back("done " + std::to_string(completions->jobs.size()));
    } else {
      sent.push_back(std::holds_alternative<Prepared>(message) ? "prepared" : "other");
    }
  }
  bool Drain(std::vector<FromCoordinator>*) override { return true; }
  absl::Status status() const override { return absl::OkStatus(); }
  int event_fd() const override { return -1; }

  std::function<void()> on_send;
  std::vector<std::string> sent;
};

Completions Done(int microbatch, int step = 0) {
  Completions completions;
  completions.jobs.push_back({Job::Compute(step, 0, microbatch, JobKind::kForward)});
  return completions;
}

constexpr int64_t kNow = 1000, kGather = 500;

class OutboxTest : public ::testing::Test {
 protected:
  bool SendGathered() {
    MutexLock lock(mu_);
    return outbox_.SendGathered(mu_);
  }

  Mutex mu_;
  KeptLink link_;
  Outbox outbox_{link_, kGather};
};

TEST_F(OutboxTest, Completions_WaitAndLeaveAsOneMessage) {
  EXPECT_FALSE(outbox_.Send(kNow, Done(0)));
  EXPECT_FALSE(outbox_.Send(kNow, Done(1)));
  EXPECT_TRUE(link_.sent.empty());
  EXPECT_TRUE(SendGathered());
  EXPECT_THAT(link_.sent, ElementsAre("done 2"));
  EXPECT_FALSE(SendGathered());
}

TEST_F(OutboxTest, Completions_AreDueAWhileBehindTheFirst) {
  EXPECT_EQ(outbox_.due_ns(), INT64_MAX);
  outbox_.Send(kNow, Done(0));
  outbox_.Send(kNow + 5, Done(1));
  EXPECT_EQ(outbox_.due_ns(), kNow + kGather);
  SendGathered();
  EXPECT_EQ(outbox_.due_ns(), INT64_MAX);
}

TEST_F(OutboxTest, CompletionToTellSoon_IsDueAtOnceWithThoseBeforeIt) {
  outbox_.Send(kNow, Done(0));
  EXPECT_TRUE(outbox_.Send(kNow + 5, Done(1), /*soon=*/true));
  EXPECT_LE(outbox_.due_ns(), kNow + 5);
  EXPECT_TRUE(link_.sent.empty()) << "the caller has a thread send it";
  EXPECT_TRUE(SendGathered());
  EXPECT_THAT(link_.sent, ElementsAre("done 2"));
}

TEST_F(OutboxTest, FirstCompletionOfAnAttempt_IsUrgent) {
  outbox_.BeginAttempt(0);
  EXPECT_TRUE(outbox_.Send(kNow, Done(0)));
  EXPECT_TRUE(outbox_.is_urgent());
  SendGathered();
  EXPECT_FALSE(outbox_.is_urgent());
  EXPECT_FALSE(outbox_.Send(kNow, Done(1)));
  EXPECT_FALSE(outbox_.is_urgent());
  outbox_.Clear();
  EXPECT_TRUE(outbox_.Send(kNow, Done(1))) << "the link is new";
}

TEST_F(OutboxTest, CompletionsOfWatchedSteps_AreUrgentEach) {
  outbox_.BeginAttempt(/*watched_before=*/2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(outbox_.Send(kNow, Done(i, /*step=*/1)));
    EXPECT_TRUE(outbox_.is_urgent());
    SendGathered();
  }
  EXPECT_FALSE(outbox_.Send(kNow, Done(0, /*step=*/2)));
  EXPECT_FALSE(outbox_.is_urgent());
}

TEST_F(OutboxTest, OtherMessages_LeaveAtOnceBehindThoseThatWaited) {
  outbox_.Send(kNow, Done(0));
  EXPECT_FALSE(outbox_.Send(kNow, Prepared{1}));
  EXPECT_THAT(link_.sent, ElementsAre("done 1", "prepared"));
}

TEST_F(OutboxTest, ManyCompletions_AreFull) {
  for (int i = 0; i < 31; ++i) outbox_.Send(kNow, Done(i));
  EXPECT_FALSE(outbox_.is_full());
  outbox_.Send(kNow, Done(31));
  EXPECT_TRUE(outbox_.is_full());
  SendGathered();
  EXPECT_FALSE(outbox_.is_full());
}

TEST_F(OutboxTest, MessageThatComesWhileOthersAreWritten_LeavesBehindThem) {
  outbox_.Send(kNow, Done(0));
  link_.on_send = [this] {
    link_.on_send = nullptr;
    MutexLock lock(mu_);  // the writer has released it
    EXPECT_FALSE(outbox_.SendGathered(mu_)) << "one thread sends at a time";
    outbox_.Send(kNow, Prepared{1});
  };
  EXPECT_TRUE(SendGathered());
  EXPECT_THAT(link_.sent, ElementsAre("done 1", "prepared"));
}

}  // namespace
}  // namespace weft::outbox_test
