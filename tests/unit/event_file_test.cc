// Event files of TensorBoard.
#include "coordinator/record/event_file.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "coordinator/record/step_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorboard/event.pb.h"
#include "tests/test_folder.h"

namespace weft::event_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// The values of RFC 3720, B.4, and of the usual check.
TEST(Crc32c, KnownBytes_HaveTheKnownSums) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// The head of each event file that TensorFlow writes begins so: 24 bytes of data and the masked sum of that
// length.
TEST(TfRecord, LengthAndSums_AreThoseOfTensorFlow) {
  const std::string record = TfRecord(std::string(24, 'x'));
  EXPECT_EQ(record.size(), 8 + 4 + 24 + 4u);
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
}

class EventFileTest : public ::testing::Test {
 protected:
  // Returns the events of the file, whose sums must be right.
  std::vector<tensorflow::Event> Read() const {
    std::stringstream text;
    text << std::ifstream(folder_ / EventFile::kName).rdbuf();
    const std::string all = text.str();
    std::vector<tensorflow::Event> events;
    for (size_t at = 0; at < all.size();) {
      const size_t length =
          static_cast<unsigned char>(all[at]) + 256 * static_cast<unsigned char>(all[at + 1]);
      const std::string data = all.substr(at + 12, length);
      EXPECT_EQ(all.substr(at, 16 + length), TfRecord(data));
      EXPECT_TRUE(events.emplace_back().ParseFromString(data));
      at += 16 + length;
    }
    return events;
  }
  static std::map<std::string, float> Scalars(const tensorflow::Event& event) {
    std::map<std::string, float> scalars;
    for (const auto& value : event.summary().value()) scalars[value.tag()] = value.simple_value();
    return scalars;
  }
  // Returns the steps of the events behind the first.
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const auto& event : Read()) steps.push_back(event.step());
    return {steps.begin() + 1, steps.end()};
  }

  const TestFolder folder_;
};

TEST_F(EventFileTest, StepsAndValidations_HaveTheirScalars) {
  EventTerms terms;
  terms.learning_rate = [](int step) { return 0.5 / (1 + step); };
  terms.samples = 8;
  terms.tokens = 64;
  StepLog log(folder_.path(), 0, NonFinite::kStop, terms);
  ASSERT_TRUE(log.Append(StepRecord{0, 3, true, 2, 2, 0.25}).ok());
  ASSERT_TRUE(log.Append(Validation{1, 1, 8, 8, 0.125, {{"accuracy", 0.75}, {"top5", 0.875}}}).ok());
  const std::vector<tensorflow::Event> events = Read();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_THAT(Scalars(events[1]),
              UnorderedElementsAre(Pair("loss", 3), Pair("gradient_norm", 0.25), Pair("learning_rate", 0.5),
                                   Pair("seconds_per_step", 2), Pair("samples_per_second", 4),
                                   Pair("tokens_per_second", 32)));
  EXPECT_EQ(events[2].step(), 1);
  EXPECT_THAT(Scalars(events[2]),
              UnorderedElementsAre(Pair("validation/loss", 0.125), Pair("validation/accuracy", 0.75),
                                   Pair("validation/top5", 0.875)));
  EXPECT_GT(events[1].wall_time(), 1.7e9);
}

TEST_F(EventFileTest, RunThatGoesOn_HasEachStepOnce) {
  {
    StepLog log(folder_.path(), 0);
    for (int step = 0; step < 4; ++step)
      ASSERT_TRUE(log.Append(StepRecord{step, 1, true, 1, 1.0 + step}).ok());
  }
  StepLog log(folder_.path(), 2);
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2, 3)) << "nothing changes before a step is made";
  ASSERT_TRUE(log.Append(StepRecord{2, 1, true, 1, 1}).ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1, 2));
}

TEST_F(EventFileTest, CannotBeWritten_IsMadeWholeAtTheEnd) {
  fs::create_directory(folder_ / EventFile::kName);  // in the file's place
  StepLog log(folder_.path(), 0);
  ASSERT_TRUE(log.Append(StepRecord{0, 1, true, 1, 1}).ok());
  EXPECT_NE(log.TakeNotice(), "");
  ASSERT_TRUE(log.Append(StepRecord{1, 1, true, 1, 2}).ok());
  EXPECT_EQ(log.TakeNotice(), "") << "it is said once";
  fs::remove(folder_ / EventFile::kName);
  ASSERT_TRUE(log.Finish().ok());
  EXPECT_THAT(Steps(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace weft::event_file_test
