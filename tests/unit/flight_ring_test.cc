#include "base/log/flight_ring.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/log/daemon_log.h"
#include "base/log/flight_dump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::flight_ring_test {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Not;
using ::testing::StartsWith;

TEST(EventText, Fields_AreWordsOfLogfmt) {
  EventText text("arrived");
  text.Add("step", -1).AddWord("tensor", "weights").AddText("err", "a \"b\"\\\nc").Add("part", INT64_MIN);
  EXPECT_EQ(text.view(),
            R"(event=arrived step=-1 tensor=weights err="a \"b\"\\ c" part=-9223372036854775808)");
}

TEST(EventText, TextThatIsTooLong_IsCutInsideItsQuotes) {
  const std::string quotes(EventText::kCapacity, '"');
  for (const std::string& text : {std::string(EventText::kCapacity, 'x'), quotes, "x" + quotes}) {
    EventText event("log");
    event.AddText("msg", text);
    EXPECT_LE(event.view().size(), EventText::kCapacity);
    EXPECT_GE(event.view().size(), EventText::kCapacity - 1) << "the room is used";
    EXPECT_THAT(std::string(event.view()), EndsWith("..\""));
    EXPECT_THAT(std::string(event.view()), Not(EndsWith("\\..\""))) << "an escape is whole";
    event.Add("step", 1).AddWord("tensor", "weights").AddText("err", "e");
    EXPECT_THAT(std::string(event.view()), EndsWith("..\"")) << "what has no room is left out";
  }
}

TEST(EventText, TextThatJustFits_IsWhole) {
  EventText event("log");
  const std::string text(EventText::kCapacity - event.view().size() - std::string(" msg=\"\"").size(), 'x');
  event.AddText("msg", text);
  EXPECT_EQ(event.view(), absl::StrCat("event=log msg=\"", text, "\""));
}

// Returns the numbers that Fill gave to the events which the ring still has, in order.
std::vector<int> NumbersIn(const FlightRing& ring) {
  std::vector<int> numbers;
  FlightRing::Event event;
  for (uint64_t n = 0; n < ring.next(); ++n) {
    int number = 0;
    if (ring.Read(n, &event) && absl::SimpleAtoi(event.view().substr(event.view().find('=', 6) + 1), &number))
      numbers.push_back(number);
  }
  return numbers;
}

void Fill(FlightRing& ring, int events) {
  for (int i = 0; i < events; ++i) ring.Note(1000 + i, EventText("e").Add("n", i));
}

TEST(FlightRing, MoreEventsThanSlots_TheLastOnesStayInTheirOrder) {
  FlightRing ring(4);
  Fill(ring, 3);
  EXPECT_THAT(NumbersIn(ring), ElementsAre(0, 1, 2));
  FlightRing longer(4);
  Fill(longer, 11);
  EXPECT_THAT(NumbersIn(longer), ElementsAre(7, 8, 9, 10));
  FlightRing::Event event;
  ASSERT_TRUE(longer.Read(7, &event));
  EXPECT_EQ(event.time_ns, 1007);
  EXPECT_EQ(event.thread, static_cast<uint32_t>(gettid()));
  EXPECT_FALSE(longer.Read(6, &event)) << "it is written over";
  EXPECT_FALSE(longer.Read(11, &event)) << "it is still to come";
}

TEST(FlightRing, ShorterEventInALongerOnesSlot_HasNothingOfThat) {
  FlightRing ring(1);
  ring.Note(1, EventText("long").AddText("msg", std::string(100, 'x')));
  ring.Note(2, EventText("short"));
  FlightRing::Event event;
  ASSERT_TRUE(ring.Read(1, &event));
  EXPECT_EQ(event.view(), "event=short");
}

// Events of a thread have one letter and one length; a torn one would have two of them.
std::string LetterText(int thread) { return std::string(30 + 40 * thread, static_cast<char>('a' + thread)); }

// Returns whether the event is one that WriteLetters makes.
bool IsWhole(const FlightRing::Event& event) {
  for (int thread = 0; thread < 4; ++thread) {
    EventText text("e");
    text.AddText("t", LetterText(thread));
    if (event.view() == text.view()) return event.time_ns == thread;
  }
  return false;
}

TEST(FlightRing, SeveralWritersInFewSlots_NoEventIsReadThatIsNotWhole) {
  constexpr int kEvents = 50'000;
  FlightRing ring(2);
  std::atomic<int> left{4};
  std::vector<std::thread> writers;
  for (int thread = 0; thread < 4; ++thread) {
    writers.emplace_back([&ring, &left, thread] {
      for (int i = 0; i < kEvents; ++i) ring.Note(thread, EventText("e").AddText("t", LetterText(thread)));
      --left;
    });
  }
  int64_t read = 0, torn = 0;
  FlightRing::Event event;
  while (left > 0) {
    for (uint64_t back = 1; back <= 2 && back <= ring.next(); ++back) {
      if (!ring.Read(ring.next() - back, &event)) continue;
      ++read;
      torn += IsWhole(event) ? 0 : 1;
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0) << "of " << read;
  EXPECT_EQ(ring.next(), 4u * kEvents);
  Fill(ring, 2);
  EXPECT_THAT(NumbersIn(ring), ElementsAre(0, 1)) << "no slot is left as one that is being written";
}

// Returns what is dumped of the ring.
std::vector<std::string> Dump(const FlightRing& ring, int64_t unix_minus_monotonic_ns = 0) {
  std::FILE* const file = std::tmpfile();
  EXPECT_EQ(WriteFlightDump(fileno(file), ring, unix_minus_monotonic_ns,
                            EventText("dump").AddWord("cause", "stall"), " pid=7"),
            0);
  std::string text(1 << 20, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

TEST(FlightDump, Ring_IsALineForEachEventBetweenHeadAndEnd) {
  FlightRing ring(64);
  Fill(ring, 100);
  const std::vector<std::string> lines = Dump(ring);
  ASSERT_EQ(lines.size(), 66u);
  EXPECT_THAT(lines[0], EndsWith(" event=dump cause=stall pid=7"));
  EXPECT_THAT(lines[1], EndsWith(absl::StrCat(" thread=", gettid(), " event=e n=36")));
  EXPECT_THAT(lines[64], EndsWith(" event=e n=99"));
  EXPECT_THAT(lines[65], EndsWith(" event=dump_ends events=64 overwritten=36 unreadable=0"));
}

TEST(FlightDump, Times_AreThoseOfTheLog) {
  FlightRing ring(2);
  constexpr int64_t kOffset = 1'000'000'000'000'000'000;
  // The calendar's special days, as milliseconds since 1970; EventTime asks the C library.
  for (const int64_t ms : {951'782'400'123, 951'868'799'999, 951'868'800'000, 978'220'800'000,
                           1'709'164'800'000, 1'709'251'200'000, 1'767'225'599'999, 4'107'542'400'000}) {
    ring.Note(ms * 1'000'000 + 456'789 - kOffset, EventText("e"));
    std::string time = EventTime(ms);
    time.insert(time.size() - 1, "456");
    EXPECT_THAT(Dump(ring, kOffset).rbegin()[1], StartsWith(absl::StrCat("time=", time, " thread=")));
  }
}

TEST(FlightDump, DescriptorThatCannotBeWritten_ReturnsItsError) {
  FlightRing ring(2);
  EXPECT_EQ(WriteFlightDump(-1, ring, 0, EventText("dump"), ""), EBADF);
}

TEST(DaemonLog, EventBelowTheLevel_IsInTheRing) {
  FlightRing ring(4);
  DaemonLog log("w", LogSeverity::kError, LogFormat::kText, &ring);
  log.Info("joined as \"w\"");
  FlightRing::Event event;
  ASSERT_TRUE(ring.Read(0, &event));
  EXPECT_EQ(event.view(), R"(event=log level=info msg="joined as \"w\"")");
}

}  // namespace
}  // namespace weft::flight_ring_test
