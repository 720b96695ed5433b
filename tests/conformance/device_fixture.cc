#include "tests/conformance/device_fixture.h"

#include <variant>

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
