#include "coordinator/shell/session_clock.h"

#include "gtest/gtest.h"
#include "proto/session/message_times.h"

namespace weft::session_clock_test {
namespace {

constexpr char kOwn[] = "boot 1";

FromWorker HelloWith(const std::string& clock) {
  Hello hello;
  hello.clock = clock;
  return hello;
}

Completions OneJob(int64_t start_ns) {
  Completions jobs;
  jobs.jobs.push_back({Job::Compute(0, 0, 0, JobKind::kForward), start_ns, start_ns + 7});
  return jobs;
}

// Returns when the job of such a message began, by our clock.
int64_t StartOf(SessionClock& clock, int64_t start_ns) {
  FromWorker message = OneJob(start_ns);
  clock.Convert(kOwn, &message);
  const Completion& job = std::get<Completions>(message).jobs[0];
  EXPECT_EQ(job.end_ns - job.start_ns, 7) << "durations stay";
  return job.start_ns;
}

TEST(SessionClock, WorkerOfAnotherMachine_ItsTimesBecomeOurs) {
  SessionClock clock;
  clock.Observe(1'000, 5'300);  // 300 on its way
  FromWorker hello = HelloWith("boot 2");
  clock.Convert(kOwn, &hello);
  EXPECT_EQ(StartOf(clock, 900), 5'200);
  clock.Observe(2'000, 6'050);
  EXPECT_EQ(StartOf(clock, 1'900), 5'950) << "the fastest packet counts";
  clock.Observe(3'000, 9'000);
  EXPECT_EQ(StartOf(clock, 2'900), 6'950);
}

TEST(SessionClock, WorkerWithOurClock_ItsTimesStay) {
  SessionClock clock;
  clock.Observe(1'000, 1'300);
  FromWorker hello = HelloWith(kOwn);
  clock.Convert(kOwn, &hello);
  EXPECT_EQ(StartOf(clock, 900), 900);
}

TEST(SessionClock, WorkerThatSaysTooLittle_ItsTimesStay) {
  SessionClock older;
  FromWorker hello = HelloWith("");
  older.Convert(kOwn, &hello);
  older.Observe(0, 5'300);
  EXPECT_EQ(StartOf(older, 900), 900);
  SessionClock wrong;
  hello = HelloWith("boot 2");
  wrong.Convert(kOwn, &hello);
  wrong.Observe(INT64_MAX, 5'300);
  wrong.Observe(-1, 5'300);
  EXPECT_EQ(StartOf(wrong, 900), 900);
}

TEST(MoveTimes_SpansAndReports, EveryTimeMovesAndWhatIsNotKnownStays) {
  const TransferSpan known{.wanted_ns = 10, .made_ns = 11, .arrived_ns = 12};
  const TransferSpan unknown{.wanted_ns = 10, .made_ns = 0, .arrived_ns = 12};
  RankReport report;
  report.idle_spans = {{IdleCause::kDependency, 20, 25}};
  report.transfer_spans = {known, unknown};
  const auto check = [](const std::vector<IdleSpan>& idle, const std::vector<TransferSpan>& transfers) {
    EXPECT_EQ(idle[0].start_ns, 120);
    EXPECT_EQ(idle[0].end_ns, 125);
    EXPECT_EQ(transfers[0].wanted_ns, 110);
    EXPECT_EQ(transfers[0].made_ns, 111);
    EXPECT_EQ(transfers[1].made_ns, 0);
    EXPECT_EQ(transfers[1].arrived_ns, 112);
  };
  FromWorker finished = Finished{1, {report}}, told = Report{1, {report}},
             spans = Spans{1, {{0, report.idle_spans, report.transfer_spans}}};
  for (FromWorker* message : {&finished, &told, &spans}) MoveTimes(100, message);
  check(std::get<Finished>(finished).ranks[0].idle_spans,
        std::get<Finished>(finished).ranks[0].transfer_spans);
  check(std::get<Report>(told).ranks[0].idle_spans, std::get<Report>(told).ranks[0].transfer_spans);
  check(std::get<Spans>(spans).ranks[0].idle, std::get<Spans>(spans).ranks[0].transfers);
}

}  // namespace
}  // namespace weft::session_clock_test
