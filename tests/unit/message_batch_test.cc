#include "proto/session/message_batch.h"

#include <gtest/gtest.h>

namespace weft::message_batch_test {
namespace {

Completions Done(Rank rank, int first, int count, uint64_t run = 1, uint64_t sequence = 1) {
  Completions m{run, rank, {1, sequence}, {}};
  for (int b = first; b < first + count; ++b)
    m.jobs.push_back({Job::Compute(0, 0, b, JobKind::kForward), 0, 0, 0, false});
  return m;
}

TEST(MessageBatch, SameRank_JoinsInOrder) {
  std::deque<FromWorker> waiting;
  AddToBatch(&waiting, Done(0, 0, 2));
  AddToBatch(&waiting, Done(1, 0, 1));
  AddToBatch(&waiting, Done(0, 2, 3));
  ASSERT_EQ(waiting.size(), 2u);
  const auto& jobs = std::get<Completions>(waiting[0]).jobs;
  ASSERT_EQ(jobs.size(), 5u);
  for (int b = 0; b < 5; ++b) EXPECT_EQ(jobs[b].job.microbatch, b);
}

TEST(MessageBatch, OtherTokenOrKindBetween_IsNotJoined) {
  std::deque<FromWorker> waiting;
  AddToBatch(&waiting, Done(0, 0, 1));
  AddToBatch(&waiting, Done(0, 1, 1, 1, 2));
  AddToBatch(&waiting, Done(0, 2, 1, 1, 1));
  EXPECT_EQ(waiting.size(), 3u) << "the order of a rank's messages stays";
  AddToBatch(&waiting, Prepared{1});
  AddToBatch(&waiting, Done(0, 3, 1));
  EXPECT_EQ(waiting.size(), 5u) << "nothing is joined across another kind";
}

TEST(MessageBatch, Bound_IsKept) {
  std::deque<FromCoordinator> waiting;
  const Grant full{1, 0, {1, 1}, std::vector<Job>(kMaxBatchJobs - 1)};
  AddToBatch(&waiting, full);
  AddToBatch(&waiting, Grant{1, 0, {1, 1}, std::vector<Job>(1)});
  EXPECT_EQ(waiting.size(), 1u);
  AddToBatch(&waiting, Grant{1, 0, {1, 1}, std::vector<Job>(1)});
  EXPECT_EQ(waiting.size(), 2u);
}

}  // namespace
}  // namespace weft::message_batch_test
