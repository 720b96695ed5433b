#include "client/files/trace_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() {
    std::string name = ::testing::TempDir() + "trace_file_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TraceFile() override { std::filesystem::remove_all(folder_); }

  // Reads a trace of one forward with these fields behind its events.
  Trace Read(const std::string& fields) const {
    const std::string path = folder_ + "/trace.json";
    std::ofstream(path)
        << R"({"traceEvents":[{"ph":"X","name":"forward s0 b0","cat":"forward","pid":0,"tid":0,)"
        << R"("ts":0,"dur":5,"args":{"step":0,"stage":0,"microbatch":0,"rank":0}}])" << fields << "}";
    const absl::StatusOr<Trace> trace = ReadTrace(path);
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() ? *trace : Trace();
  }

  std::string folder_;
};

TEST_F(TraceFile, ActivationBytes_AreReadByTheirFormerNameToo) {
  EXPECT_THAT(Read(R"(,"activation_bytes":[5,7])").activation_bytes, ElementsAre(5, 7));
  EXPECT_THAT(Read(R"(,"left_bytes":[5,7])").activation_bytes, ElementsAre(5, 7));
  EXPECT_THAT(Read(R"(,"activation_bytes":[1],"left_bytes":[2])").activation_bytes, ElementsAre(1));
  EXPECT_THAT(Read("").activation_bytes, IsEmpty());
}

TEST_F(TraceFile, PlannedJobsAndIdleTimes_AreReadApartFromTheJobs) {
  DrawingOptions options;
  options.ranks = options.stages = 1;
  options.time = DrawnTime::kSeconds;
  options.planned = {{Job::Compute(0, 0, 0, JobKind::kForward), 0, 3, 4}};
  options.idle = {{0, 5, 6, "memory"}};
  const std::string path = folder_ + "/trace.json";
  std::ofstream(path) << DrawTrace({{{Job::Compute(0, 0, 0, JobKind::kForward), 0, 3, 5, 0.25}}}, options);
  const absl::StatusOr<Trace> trace = ReadTrace(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->jobs.size(), 1u);
  EXPECT_DOUBLE_EQ(trace->jobs[0].end, 2);
  EXPECT_DOUBLE_EQ(trace->jobs[0].delay, 0.25);
  ASSERT_EQ(trace->planned.size(), 1u);
  EXPECT_EQ(trace->planned[0].job, trace->jobs[0].job);
  EXPECT_DOUBLE_EQ(trace->planned[0].end, 1);
  ASSERT_EQ(trace->idle.size(), 1u);
  EXPECT_EQ(trace->idle[0].cause, "memory");
  EXPECT_DOUBLE_EQ(trace->idle[0].start, 2);
}

TEST_F(TraceFile, ActivationBytesThatAreNoSizes_AreNotTaken) {
  EXPECT_THAT(Read(R"(,"activation_bytes":[5,-7])").activation_bytes, IsEmpty());
  EXPECT_THAT(Read(R"(,"activation_bytes":5)").activation_bytes, IsEmpty());
}

}  // namespace
}  // namespace weft
