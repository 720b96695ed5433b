// The data of a rank where the device is the host; tests of devices with memory of their own read ahead.
#include "worker/shell/torch/data_feed.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/cpu_rank_device.h"

namespace weft::data_feed_test {
namespace {

// Samples of three features: the sample's number and two fractions. Samples from `end` on cannot be read.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t end) : end_(end) {}
  int64_t count() const override { return 64; }
  DataType input_type() const override { return DataType::kFloat32; }
  int64_t inputs() const override { return 3; }
  int64_t targets() const override { return 1; }
  absl::Status ReadInputs(int64_t sample, void* out) const override {
    if (sample >= end_) return absl::DataLossError("the file has changed");
    auto* const to = static_cast<float*>(out);
    to[0] = static_cast<float>(sample);
    to[1] = to[0] + 1.0f / 3;
    to[2] = -to[1];
    return absl::OkStatus();
  }
  absl::Status ReadTargets(int64_t sample, int64_t* out) const override {
    *out = sample * 2;
    return absl::OkStatus();
  }

 private:
  const int64_t end_;
};

class DataFeedTest : public ::testing::Test {
 protected:
  DataFeedTest() { run_.train = {4, 8, 2, 3, SgdSpec()}; }
  std::unique_ptr<DataFeed> Make(int64_t end = 64) {
    return std::make_unique<DataFeed>(run_, std::make_unique<Numbers>(end), device_, guard_,
                                      [](int) { return std::vector<DataPiece>(); });
  }

  RunSpec run_;
  PlainMemory memory_;
  CpuRankDevice device_{memory_};
  const RankGuard guard_{device_, [] {}};
};

TEST_F(DataFeedTest, Take_OfAMicroBatch_ReturnsItsSamplesInOrder) {
  const auto feed = Make();
  EXPECT_FALSE(feed->sends_ahead());
  const at::Tensor inputs = *feed->Take({1, 1, /*targets=*/false});
  ASSERT_EQ(inputs.scalar_type(), c10::kFloat);
  ASSERT_EQ(inputs.numel(), 4 * 3);
  const at::Tensor targets = *feed->Take({1, 1, /*targets=*/true});
  ASSERT_EQ(targets.scalar_type(), c10::kLong);
  ASSERT_EQ(targets.numel(), 4);
  for (int i = 0; i < 4; ++i) {  // step 1 begins at sample 8, its second micro-batch at 12
    EXPECT_EQ(inputs.const_data_ptr<float>()[i * 3], static_cast<float>(12 + i));
    EXPECT_EQ(targets.const_data_ptr<int64_t>()[i], (12 + i) * 2);
  }
}

TEST_F(DataFeedTest, Take_WhereLayersReadBFloat16_RoundsInputsAndNotTargets) {
  run_.precision = Precision::kBFloat16;
  const auto feed = Make();
  const at::Tensor inputs = *feed->Take({0, 0, /*targets=*/false});
  ASSERT_EQ(inputs.scalar_type(), c10::kBFloat16);
  EXPECT_EQ(static_cast<float>(inputs.const_data_ptr<c10::BFloat16>()[4]),
            static_cast<float>(c10::BFloat16(1 + 1.0f / 3)));
  EXPECT_EQ(feed->Take({0, 0, /*targets=*/true})->scalar_type(), c10::kLong);
}

TEST_F(DataFeedTest, Take_OfDataThatCannotBeRead_ReturnsTheFailure) {
  const auto feed = Make(/*end=*/6);
  EXPECT_TRUE(feed->Take({0, 0, false}).ok());
  EXPECT_EQ(feed->Take({0, 1, false}).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weft::data_feed_test
