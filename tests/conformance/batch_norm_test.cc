// The running averages of batch norms: what a step makes of them, by hand.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "run/run_schedule.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/parameters.h"

namespace weft::testing::batch_norm_test {
namespace {

constexpr int kSide = 5, kSamples = 3, kMicrobatches = 4, kImages = 50;

// Images that only the sample's number and the place decide.
uint8_t Pixel(int sample, int place) { return static_cast<uint8_t>((sample * 31 + place * place * 7) % 251); }

RunSpec StemRun(const std::string& folder) {
  std::string images("\0\0\x08\x03\0\0\0\x32\0\0\0\x05\0\0\0\x05", 16);
  std::string labels("\0\0\x08\x01\0\0\0\x32", 8);
  for (int i = 0; i < kImages; ++i) {
    labels.push_back(static_cast<char>(i % 10));
    for (int p = 0; p < kSide * kSide; ++p) images.push_back(static_cast<char>(Pixel(i, p)));
  }
  WriteFile(folder + "/images", images);
  WriteFile(folder + "/labels", labels);
  ResNetSpec model;
  model.width = 1;
  model.channels = 1;
  model.size = kSide;
  RunSpec run;
  run.model = model;
  run.data.source = IdxData{folder + "/images", folder + "/labels"};
  run.train = {2, kSamples * kMicrobatches, kMicrobatches, 1, Sgd()};
  run.layers_of_stage = {1, 9};
  return run;
}

const ParameterSlot& SlotOf(const StageLayout& layout, const std::string& name) {
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.parameter.name == name) return slot;
  }
  ADD_FAILURE() << name;
  return layout.slots.front();
}

float& At(const Tensor& flat, const ParameterSlot& slot, int64_t element = 0) {
  return static_cast<float*>(flat.data)[slot.offset + element];
}

// Mean and unbiased variance of a micro-batch's pixels.
void Measure(int step, int microbatch, float* mean, float* variance) {
  const int first = (step * kMicrobatches + microbatch) * kSamples;
  std::vector<float> pixels;
  for (int i = 0; i < kSamples; ++i) {
    for (int p = 0; p < kSide * kSide; ++p) {
      pixels.push_back(static_cast<float>(Pixel((first + i) % kImages, p)) / 255.0f);
    }
  }
  double sum = 0, squares = 0;
  for (const float x : pixels) sum += x;
  const double count = static_cast<double>(pixels.size()), center = sum / count;
  for (const float x : pixels) squares += (x - center) * (x - center);
  *mean = static_cast<float>(center);
  *variance = static_cast<float>(squares / (count - 1));
}

// A stem whose convolution hands the image on as it is, so that what the norm reads is known.
TEST(BatchNormTest, RunningAverages_AfterEachStep_AreThoseByHand) {
  TestFolder folder;
  const RunSpec run = StemRun(folder.path());
  const StageLayout layout = LayOutStage(run, 0);
  const ParameterSlot &mean = SlotOf(layout, "norm1.running_mean"),
                      &variance = SlotOf(layout, "norm1.running_var");
  PlainMemory memory;
  const std::unique_ptr<Device> cpu = CreateCpuDevice();
  auto rank = *cpu->CreateRank(*ScheduledRun::Make(run), 0, memory);
  ASSERT_TRUE(rank->AddStage(0, StageRole::Whole()).ok());
  float expected_mean = 0, expected_variance = 1;
  ASSERT_EQ(At(*rank->Weights(0, 0), mean), expected_mean);
  ASSERT_EQ(At(*rank->Weights(0, 0), variance), expected_variance);
  for (int t = 0; t < run.train.steps; ++t) {
    float mean_sum = 0, variance_sum = 0;
    for (int b = 0; b < kMicrobatches; ++b) {
      const Tensor weights = CopyOf(*rank->Weights(0, t));
      const ParameterSlot& kernel = SlotOf(layout, "conv1.weight");
      for (int i = 0; i < 9; ++i) At(weights, kernel, i) = i == 4 ? 1 : 0;
      auto forward = rank->Forward(Job::Compute(t, 0, b, JobKind::kForward), {}, weights, t);
      ASSERT_TRUE(forward.ok()) << forward.status();
      // Any gradient will do: the statistics do not depend on it.
      const Tensor any = CopyOf(forward->activation);
      auto backward = rank->Backward(Job::Compute(t, 0, b, JobKind::kBackward), {any}, weights, t, true);
      ASSERT_TRUE(backward.ok()) << backward.status();
      float of_mean = 0, of_variance = 0;
      Measure(t, b, &of_mean, &of_variance);
      const float measured_mean = At(backward->gradient, mean),
                  measured_variance = At(backward->gradient, variance);
      EXPECT_FLOAT_EQ(measured_mean, of_mean) << "micro-batch " << b;
      EXPECT_FLOAT_EQ(measured_variance, of_variance) << "micro-batch " << b;
      // Each operation from here on is one, so the results are equal to the bit.
      mean_sum = b == 0 ? measured_mean : mean_sum + measured_mean;
      variance_sum = b == 0 ? measured_variance : variance_sum + measured_variance;
      ASSERT_TRUE(rank->Accumulate(Job::Reduce(t, 0, 0), b, backward->gradient, 0, 1).ok());
    }
    ASSERT_TRUE(rank->Update(Job::Update(t, 0, 0), {}, Tensor{}, false).ok());
    const float kept_mean = expected_mean * 0.9f, kept_variance = expected_variance * 0.9f;
    const float moved_mean = mean_sum / kMicrobatches * 0.1f;
    const float moved_variance = variance_sum / kMicrobatches * 0.1f;
    expected_mean = kept_mean + moved_mean;
    expected_variance = kept_variance + moved_variance;
    EXPECT_EQ(At(*rank->Weights(0, t + 1), mean), expected_mean) << "step " << t;
    EXPECT_EQ(At(*rank->Weights(0, t + 1), variance), expected_variance) << "step " << t;
  }
}

}  // namespace
}  // namespace weft::testing::batch_norm_test
