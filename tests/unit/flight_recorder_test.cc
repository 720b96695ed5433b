#include "base/log/flight_recorder.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::flight_recorder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FlightRecorderTest : public ::testing::Test {
 protected:
  FlightRecorderTest() {
    recorder_.emplace(FlightRecorder::Options{"w", "1.2.3", folder_}, ring_, log_);
    ring_.Note(1, EventText("job_begins").Add("rank", 5));
  }

  std::string PathOf(const std::string& cause) const {
    return absl::StrCat(folder_, "/flight-w-", HostName(), "-", getpid(), "-", cause, ".log");
  }
  std::string Read(const std::string& path) const {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  void AwaitDumps(int64_t count) const {
    constexpr int kTries = 6000;
    for (int i = 0; i < kTries && recorder_->dumps() < count; ++i) usleep(10'000);
    EXPECT_EQ(recorder_->dumps(), count);
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
  FlightRing ring_;
  DaemonLog log_{"w", LogSeverity::kInfo, LogFormat::kText, &ring_};
  std::optional<FlightRecorder> recorder_;
};

TEST_F(FlightRecorderTest, Stall_IsDumpedAndTheLogSaysWhere) {
  testing::internal::CaptureStderr();
  recorder_->Stalled("rank 1 waits for \"w2\"");
  AwaitDumps(1);
  recorder_->DumpNow("it ends");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning w: stall: rank 1 waits for \"w2\": the last events are in " +
                              PathOf("stall") + "\n"),
                    HasSubstr("stall: it ends: the last events are in ")));
  const std::string dump = Read(PathOf("stall"));
  EXPECT_THAT(dump, HasSubstr(" event=dump cause=stall why=\"it ends\" program=w version=1.2.3 host="));
  EXPECT_THAT(dump, HasSubstr(" event=job_begins rank=5\n"));
}

TEST_F(FlightRecorderTest, LinkUnderTheNameOfADump_IsReplacedAndNotFollowed) {
  const std::string other = folder_ + "/other";
  std::ofstream(other) << "of somebody else";
  fs::create_symlink(other, PathOf("stall"));
  recorder_->DumpNow("why");
  EXPECT_EQ(Read(other), "of somebody else");
  EXPECT_FALSE(fs::is_symlink(PathOf("stall")));
}

TEST_F(FlightRecorderTest, ProblemThatStays_IsOneDump) {
  std::atomic<int> looks{0};
  recorder_->Watch([&looks] { return ++looks > 1 ? std::string("the loop hangs") : std::string(); });
  AwaitDumps(1);
  EXPECT_GE(looks, 3) << "two looks in a row have found it";
  const int before = looks;
  while (looks < before + 2) usleep(10'000);
  recorder_->Watch(nullptr);
  EXPECT_EQ(recorder_->dumps(), 1);
  EXPECT_THAT(Read(PathOf("stall")), HasSubstr("cause=stall why=\"the loop hangs\""));
}

TEST(FlightRecorderFolder, IsSystemdsThenThatOfTemporaryFiles) {
  const char* const before = std::getenv("TMPDIR");
  const std::string temporary = before == nullptr ? "" : before;
  setenv("LOGS_DIRECTORY", "/var/log/weft:/var/log/more", 1);
  EXPECT_EQ(FolderByDefault(), "/var/log/weft");
  unsetenv("LOGS_DIRECTORY");
  setenv("TMPDIR", "/scratch", 1);
  EXPECT_EQ(FolderByDefault(), "/scratch");
  unsetenv("TMPDIR");
  EXPECT_EQ(FolderByDefault(), "/tmp");
  if (before != nullptr) setenv("TMPDIR", temporary.c_str(), 1);
}

#ifdef WEFT_TAKES_FATAL_SIGNALS

// Each runs in a process of its own, which dies.
class FatalSignal : public FlightRecorderTest {
 protected:
  // Ends a process by `end`, which has this recorder, and expects its dump to be of the cause.
  template <typename End>
  void ExpectDump(const std::string& cause, int signal, const std::string& code, End end) {
    const std::string folder = folder_;
    recorder_.reset();
    EXPECT_EXIT(
        {
          recorder_.emplace(FlightRecorder::Options{"w", "1.2.3", folder}, ring_, log_);
          end();
        },
        testing::KilledBySignal(signal), "w: note: " + cause + ": the last events are in ");
    std::string dump;
    for (const auto& entry : fs::directory_iterator(folder)) dump = Read(entry.path());
    EXPECT_THAT(dump, AllOf(HasSubstr(absl::StrCat(" event=dump cause=", cause, " code=", code)),
                            HasSubstr(" event=job_begins rank=5\n"), HasSubstr(" event=dump_ends ")));
  }
};

TEST_F(FatalSignal, ReadOfNoMemory_IsDumpedOfTheThreadThatDidIt) {
  ExpectDump("SIGSEGV", SIGSEGV, absl::StrCat(SEGV_MAPERR, " "), [] {
    std::thread([] {
      *static_cast<volatile int*>(nullptr) = 1;  // NOLINT(clang-analyzer-core.NullDereference)
    }).join();
  });
}

TEST_F(FatalSignal, FileCutUnderItsMapping_IsDumped) {
  ExpectDump("SIGBUS", SIGBUS, absl::StrCat(BUS_ADRERR, " "), [] {
    std::FILE* const file = std::tmpfile();
    void* const none = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    *static_cast<volatile int*>(none) = 1;
  });
}

TEST_F(FatalSignal, Abort_IsDumped) {
  ExpectDump("SIGABRT", SIGABRT, "-6 sender=", [] { std::abort(); });
}

TEST_F(FatalSignal, SeveralThreadsAtOnce_IsOneWholeDump) {
  ExpectDump("SIGABRT", SIGABRT, "-6 sender=", [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([] { raise(SIGABRT); });
    for (std::thread& thread : threads) thread.join();
  });
}

void FormerHandler(int signal, siginfo_t* info, void*) {
  const bool same = signal == SIGSEGV && info->si_code == SEGV_MAPERR && info->si_addr == nullptr;
  _exit(same ? 33 : 34);
}

TEST_F(FatalSignal, HandlerOfBefore_GetsTheSignalWithItsFacts) {
  const std::string folder = folder_;
  recorder_.reset();
  EXPECT_EXIT(
      {
        struct sigaction former {};
        former.sa_sigaction = FormerHandler;
        former.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &former, nullptr);
        FlightRecorder recorder({"w", "1.2.3", folder}, ring_, log_);
        *static_cast<volatile int*>(nullptr) = 1;
      },
      testing::ExitedWithCode(33), "SIGSEGV: the last events are in ");
}

#endif

}  // namespace
}  // namespace weft::flight_recorder_test
