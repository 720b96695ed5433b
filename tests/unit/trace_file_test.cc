#include "client/files/trace_file.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::trace_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TraceFile : public ::testing::Test {
 protected:
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

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(TraceFile, ActivationBytes_AreReadByTheirFormerNameToo) {
  EXPECT_THAT(Read(R"(,"activation_bytes":[5,7])").activation_bytes, ElementsAre(5, 7));
  EXPECT_THAT(Read(R"(,"left_bytes":[5,7])").activation_bytes, ElementsAre(5, 7));
  EXPECT_THAT(Read(R"(,"activation_bytes":[1],"left_bytes":[2])").activation_bytes, ElementsAre(1));
  EXPECT_THAT(Read("").activation_bytes, IsEmpty());
}

// A transfer of that size is in no run, and no number of bytes in 64 bits holds it.
TEST_F(TraceFile, BytesOfATransferOutOfRange_CountAsNotKnown) {
  const auto bytes = [&](const std::string& text) {
    std::istringstream trace(absl::StrCat(
        R"({"traceEvents":[{"ph":"X","cat":"forward","ts":0,"dur":5,)",
        R"("args":{"step":0,"stage":0,"microbatch":0,"rank":0}},)",
        R"({"ph":"X","cat":"transfer","ts":0,"dur":5,"args":{"from":0,"to":1,"tensor":"activation",)",
        R"("for":"forward","step":0,"stage":1,"microbatch":0,"bytes":)", text, "}}]}"));
    const absl::StatusOr<Trace> read = ParseTrace(trace, "trace.json");
    EXPECT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->transfers.size(), 1u);
    EXPECT_EQ(read->transfers.at(0).to, 1);
    return read->transfers.at(0).bytes;
  };
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("1e15"), 1e15);
  EXPECT_EQ(bytes("1e300"), 0);
  EXPECT_EQ(bytes("-1e300"), 0);
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
}  // namespace weft::trace_file_test
