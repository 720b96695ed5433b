#include "worker/shell/loop/work_threads.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/monotonic_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::work_threads_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPatience = 60'000'000'000;

// A process whose tasks are counted, and whose polls find nothing.
class CountedTasks final : public WorkThreads::Host {
 public:
  // `never_waits`: the threads may not wait for messages, as if some were always there that nobody can take.
  explicit CountedTasks(bool own_threads, bool never_waits = false)
      : never_waits_(never_waits), threads_(mu_, *this, own_threads) {}

  void PrepareThread() override {}
  WorkThreads::Doing TaskAt(int seat) override { return {"counting", std::nullopt, seat}; }
  void DoTask(int64_t /*now*/, int seat) override {
    AssertHeld(mu_);
    if (held_) sent_ = 0;
    while (held_) changed_.Wait(mu_);
    ++done_[seat];
    thread_of_[seat] = std::this_thread::get_id();
    changed_.SignalAll();
  }
  bool Poll() override { return false; }
  bool SendGathered() override {
    AssertHeld(mu_);
    ++sent_;
    return false;
  }
  bool SendDue() override {
    AssertHeld(mu_);
    ++looks_for_due_;
    changed_.SignalAll();
    return false;
  }
  std::optional<WorkThreads::Wait> PrepareToBlock() override {
    if (never_waits_) return std::nullopt;
    return WorkThreads::Wait{-1, -1, MonotonicNow() + 1'000'000, false};
  }

  absl::Status Start(int seats) {
    MutexLock lock(mu_);
    return threads_.Start(seats);
  }
  void Give(int seat) {
    MutexLock lock(mu_);
    threads_.Give(seat);
  }
  // Waits until the seat has done so many tasks.
  bool AwaitDone(int seat, int tasks) {
    const int64_t until = MonotonicNow() + kPatience;
    MutexLock lock(mu_);
    while (done_[seat] < tasks && MonotonicNow() < until) changed_.WaitWithTimeout(mu_, 1'000'000);
    return done_[seat] == tasks;
  }
  std::thread::id ThreadOf(int seat) {
    MutexLock lock(mu_);
    return thread_of_[seat];
  }
  void Hold(bool held) {
    MutexLock lock(mu_);
    held_ = held;
    changed_.SignalAll();
  }
  // Gives the first seat a task, which begins and goes on until Hold(false).
  void BeginHeldTask() {
    Hold(true);
    Give(0);
    const int64_t until = MonotonicNow() + kPatience;
    while (WhatHangs().empty() && MonotonicNow() < until) std::this_thread::yield();
  }
  // Drives on the calling thread, until the threads are stopped.
  void Drive() {
    MutexLock lock(mu_);
    threads_.DriveUntilStopped();
  }
  // Waits until the main thread has looked so often for what is due. Returns how often anything was sent
  // since the task that is held began.
  int SentWhileDriven(int looks) {
    const int64_t until = MonotonicNow() + kPatience;
    MutexLock lock(mu_);
    while (looks_for_due_ < looks && MonotonicNow() < until) changed_.WaitWithTimeout(mu_, 1'000'000);
    EXPECT_GE(looks_for_due_, looks);
    return sent_;
  }
  std::string WhatHangs() {
    MutexLock lock(mu_);
    return threads_.WhatHangs(MonotonicNow());
  }
  bool StopAndJoin(int64_t until) {
    MutexLock lock(mu_);
    threads_.Stop();
    return threads_.Join(until);
  }

 private:
  const bool never_waits_;
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int sent_ ABSL_GUARDED_BY(mu_) = 0;
  int looks_for_due_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, int> done_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::thread::id> thread_of_ ABSL_GUARDED_BY(mu_);
  WorkThreads threads_ ABSL_GUARDED_BY(mu_);
};

TEST(WorkThreads, TasksOfSeats_AreEachDoneOnce) {
  for (const bool own : {false, true}) {
    CountedTasks tasks(own);
    ASSERT_TRUE(tasks.Start(4).ok());
    for (int round = 1; round <= 20; ++round) {
      for (int seat = 0; seat < 4; ++seat) tasks.Give(seat);
      for (int seat = 0; seat < 4; ++seat) ASSERT_TRUE(tasks.AwaitDone(seat, round)) << own << " " << seat;
    }
    EXPECT_TRUE(tasks.StopAndJoin(MonotonicNow() + kPatience));
  }
}

TEST(WorkThreads, OwnThreads_DoTheTasksOfTheirSeatsAlone) {
  CountedTasks tasks(/*own_threads=*/true);
  ASSERT_TRUE(tasks.Start(2).ok());
  for (int round = 1; round <= 5; ++round) {
    for (int seat = 0; seat < 2; ++seat) {
      tasks.Give(seat);
      ASSERT_TRUE(tasks.AwaitDone(seat, round));
    }
    EXPECT_NE(tasks.ThreadOf(0), tasks.ThreadOf(1));
  }
  EXPECT_TRUE(tasks.StopAndJoin(MonotonicNow() + kPatience));
}

// The thread that drives would keep the lock for ever, and no other could do what it is to find.
TEST(WorkThreads, DriverThatMayNeverWait_LeavesTheLockToOthers) {
  for (const bool own : {false, true}) {
    CountedTasks tasks(own, /*never_waits=*/true);
    ASSERT_TRUE(tasks.Start(2).ok());
    for (int round = 1; round <= 20; ++round) {
      for (int seat = 0; seat < 2; ++seat) tasks.Give(seat);
      for (int seat = 0; seat < 2; ++seat) ASSERT_TRUE(tasks.AwaitDone(seat, round)) << own << " " << seat;
    }
    EXPECT_TRUE(tasks.StopAndJoin(MonotonicNow() + kPatience));
  }
}

TEST(WorkThreads, StopWithATaskUnderWay_WaitsForItAndNamesIt) {
  CountedTasks tasks(false);
  ASSERT_TRUE(tasks.Start(1).ok());
  tasks.BeginHeldTask();
  EXPECT_FALSE(tasks.StopAndJoin(MonotonicNow())) << "it has not ended";
  EXPECT_THAT(tasks.WhatHangs(), AllOf(HasSubstr("counting of rank 0 for "), HasSubstr(" s")));
  tasks.Hold(false);
  EXPECT_TRUE(tasks.StopAndJoin(MonotonicNow() + kPatience));
  EXPECT_EQ(tasks.WhatHangs(), "");
}

// Messages of peers wake the main thread many times in a job. What the ranks gathered stays where it is.
TEST(WorkThreads, MainThreadThatDrivesWhileAllCompute_SendsOnlyWhatIsDue) {
  CountedTasks tasks(false);
  ASSERT_TRUE(tasks.Start(1).ok());
  tasks.BeginHeldTask();
  std::thread main([&] { tasks.Drive(); });
  EXPECT_EQ(tasks.SentWhileDriven(/*looks=*/5), 0);
  tasks.Hold(false);
  EXPECT_TRUE(tasks.StopAndJoin(MonotonicNow() + kPatience));
  main.join();
}

}  // namespace
}  // namespace weft::work_threads_test
