// Provides what the tests of every device share: small runs, the comparison with the reference, a fixture by
// device and model.
#ifndef WEFT_TESTS_CONFORMANCE_DEVICE_FIXTURE_H_
#define WEFT_TESTS_CONFORMANCE_DEVICE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/conformance/devices.h"
#include "tests/conformance/training_driver.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/memory_source.h"

namespace weft::testing {

using Kind = Arrangement::Kind;

// Makes a small run of the model, as "gpt" or "two_tower_of_halves", with the optimizer, "sgd" or "adamw".
RunSpec SmallRun(const std::string& model, const std::string& optimizer, int stages,
                 const std::string& folder);

void ExpectSame(const Outcome& got, const Outcome& expected);

// Trains in several ways that must all have the same outcome, and compares each with it, at the latest at its
// end. The host waits for the test device most of the time, so trainings on that device run side by
// side: nothing may write their data meanwhile, as SmallRun does.
class SameOutcome {
 public:
  SameOutcome(const std::string& device, const Outcome& expected);
  ~SameOutcome();
  SameOutcome(const SameOutcome&) = delete;
  SameOutcome& operator=(const SameOutcome&) = delete;

  void Train(const RunSpec& run, const Arrangement& arrangement);
  void TrainInTwo(const RunSpec& run, int stop, const Arrangement& first, const Arrangement& second);

 private:
  struct Training {
    std::string name;
    std::future<Outcome> outcome;
  };
  void Add(std::string name, std::function<Outcome()> train);

  Device& device_;
  const bool side_by_side_;
  const Outcome& expected_;
  std::vector<Training> trainings_;
};

// Returns the names without the stage, so that different cuts can be compared.
std::map<std::string, std::vector<uint8_t>> WithoutStages(
    const std::map<std::string, std::vector<uint8_t>>& by_name);

inline int64_t Live(const RankCompute& rank, MemoryClass c) { return rank.live_bytes()[static_cast<int>(c)]; }

// The fixture of one device and one model; device_model_test.cc says which.
class DeviceModel : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static Device& device() { return DeviceNamed(std::get<0>(GetParam())); }
  static Outcome ReferenceHere(const RunSpec& run) {
    return Reference(run, ReferenceOf(std::get<0>(GetParam())));
  }
  // Returns true where a test that counts bytes does not hold.
  static bool RoundsUp() { return !TakesBytesAsAsked(std::get<0>(GetParam())); }
  static std::string model() { return std::get<1>(GetParam()); }
  RunSpec Run(int stages) const { return SmallRun(model(), "adamw", stages, folder_.path()); }
  RunSpec RunWithDropout(int stages) const;

  TestFolder folder_;
  PlainMemory memory_;
};

std::string NameOfModel(const ::testing::TestParamInfo<DeviceModel::ParamType>& info);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_DEVICE_FIXTURE_H_
