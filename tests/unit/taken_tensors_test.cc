#include "worker/shell/loop/taken_tensors.h"

#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace weft::taken_tensors_test {
namespace {

TEST(TakenTensors, FollowedTensor_IsTakenWithItsLastCopyAndAfterItsMemory) {
  TakenTensors taken;
  bool freed = false, noted_before = false;
  Tensor gradient;
  gradient.bytes = 4;
  gradient.owner = std::shared_ptr<void>(&freed, [&](void*) {
    noted_before = !taken.Take().empty();
    freed = true;
  });
  taken.Follow({3, 5, 1, 2}, &gradient);
  EXPECT_EQ(gradient.owner.get(), &freed);
  Tensor copy = gradient;
  gradient = Tensor();
  EXPECT_TRUE(taken.Take().empty());
  std::thread([&] { copy = Tensor(); }).join();
  EXPECT_TRUE(freed);
  EXPECT_FALSE(noted_before);
  const auto notes = taken.Take();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].run, 3u);
  EXPECT_EQ(notes[0].epoch, 5u);
  EXPECT_EQ(notes[0].rank, 1);
  EXPECT_EQ(notes[0].stage, 2);
  EXPECT_TRUE(taken.Take().empty()) << "it is noted once";
}

// A stage without parameters has no gradient.
TEST(TakenTensors, EmptyTensor_IsTakenOnceNobodyHasIt) {
  TakenTensors taken;
  Tensor gradient;
  taken.Follow({1, 1, 0, 0}, &gradient);
  EXPECT_TRUE(gradient.empty());
  EXPECT_TRUE(taken.Take().empty());
  gradient = Tensor();
  EXPECT_EQ(taken.Take().size(), 1u);
}

TEST(TakenTensors, TensorThatOutlivesThem_IsFreed) {
  auto taken = std::make_unique<TakenTensors>();
  const auto bytes = std::make_shared<int>(1);
  Tensor gradient;
  gradient.owner = bytes;
  taken->Follow({1, 1, 0, 0}, &gradient);
  taken.reset();
  gradient = Tensor();
  EXPECT_EQ(bytes.use_count(), 1);
}

}  // namespace
}  // namespace weft::taken_tensors_test
