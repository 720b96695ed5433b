#include "tests/conformance/device_fixture.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::testing {

RunSpec SmallRun(const std::string& model, const std::string& optimizer, int stages,
                 const std::string& folder) {
  RunSpec run = model == "gpt"         ? SmallGptRun(folder, stages)
                : model == "mlp"       ? SmallMlpRun(folder, stages)
                : model == "resnet18"  ? SmallResNetRun(folder, stages, 18)
                : model == "resnet50"  ? SmallResNetRun(folder, stages, 50)
                : model == "vit_b16"   ? SmallVitRun(folder, stages)
                : model == "two_tower" ? SmallTwoTowerRun(folder, stages, /*stem=*/1)
                                       : SmallTwoTowerRun(folder, stages, /*stem=*/0);
  run.train.optimizer = optimizer == "adamw" ? AdamW() : Sgd();
  return run;
}

void ExpectSame(const Outcome& got, const Outcome& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  ASSERT_EQ(got.trained.size(), expected.trained.size());
  for (const auto& [name, bytes] : expected.initial)
    EXPECT_EQ(got.initial.at(name), bytes) << "initial " << name;
  for (const auto& [name, bytes] : expected.trained)
    EXPECT_EQ(got.trained.at(name), bytes) << "trained " << name;
  EXPECT_NE(expected.trained, expected.initial);
}

namespace {

std::string Describe(const RunSpec& run, const Arrangement& arrangement) {
  return absl::StrCat(run.schedule.activations, ", arrangement ", static_cast<int>(arrangement.kind),
                      ", backwards {", absl::StrJoin(arrangement.backward_order, ", "), "}",
                      arrangement.split_backward ? ", split" : "",
                      arrangement.overlapped ? ", overlapped" : "");
}

}  // namespace

SameOutcome::SameOutcome(const std::string& device, const Outcome& expected)
    : device_(DeviceNamed(device)), side_by_side_(device == "testgpu"), expected_(expected) {}

SameOutcome::~SameOutcome() {
  for (Training& training : trainings_) {
    SCOPED_TRACE(training.name);
    ExpectSame(training.outcome.get(), expected_);
  }
}

void SameOutcome::Train(const RunSpec& run, const Arrangement& arrangement) {
  Add(Describe(run, arrangement),
      [this, run, arrangement] { return testing::Train(device_, run, arrangement); });
}

void SameOutcome::TrainInTwo(const RunSpec& run, int stop, const Arrangement& first,
                             const Arrangement& second) {
  Add(absl::StrCat("until step ", stop, ": ", Describe(run, first), "; then ", Describe(run, second)),
      [this, run, stop, first, second] { return testing::TrainInTwo(device_, run, stop, first, second); });
}

void SameOutcome::Add(std::string name, std::function<Outcome()> train) {
  if (side_by_side_) {
    auto traced = [name, train = std::move(train)] {
      SCOPED_TRACE(name);
      return train();
    };
    trainings_.push_back({std::move(name), std::async(std::launch::async, std::move(traced))});
    return;
  }
  SCOPED_TRACE(name);
  ExpectSame(train(), expected_);
}

std::map<std::string, std::vector<uint8_t>> WithoutStages(
    const std::map<std::string, std::vector<uint8_t>>& by_name) {
  std::map<std::string, std::vector<uint8_t>> result;
  for (const auto& [name, bytes] : by_name) result[name.substr(name.find('.') + 1)] = bytes;
  return result;
}

RunSpec DeviceModel::RunWithDropout(int stages) const {
  RunSpec run = Run(stages);
  if (auto* gpt = std::get_if<GptSpec>(&run.model)) gpt->dropout = 0.2;
  if (auto* mlp = std::get_if<MlpSpec>(&run.model)) mlp->dropout = 0.2;
  return run;
}

std::string NameOfModel(const ::testing::TestParamInfo<DeviceModel::ParamType>& info) {
  return std::get<1>(info.param) + "_on_" + std::get<0>(info.param);
}

}  // namespace weft::testing
