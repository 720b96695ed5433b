// Tests what a machine and its control groups say of memory, from folders that look like the kernel's.
#include "base/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/open_files.h"

namespace weft::host_memory_test {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() : root_(::testing::TempDir() + "/host_memory") { std::filesystem::remove_all(root_); }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_;
};

TEST_F(HostMemoryTest, NarrowestGroupAboveTheProcess_IsTheOneThatCounts) {
  Write("/proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n");
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/container/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/pod/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/pod/memory.current", "3221225472\n");
  Write("/sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 1073741824\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.available, 16 * kGib);
  EXPECT_EQ(memory.group_remaining, 2 * kGib) << "what is cached of files gives way";
  EXPECT_EQ(memory.Least(), 2 * kGib);
  EXPECT_EQ(memory.Describe(), "16.0 GiB available on the machine, 2.0 GiB left by its control group");
}

TEST_F(HostMemoryTest, GroupsOfVersion1_AreReadToo) {
  Write("/proc/meminfo", "MemAvailable:   16777216 kB\n");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n3:memory:/a\n0::/a\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n");
  Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1073741824\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  Write("/sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  EXPECT_EQ(ReadHostMemory(root_).group_remaining, kGib);
  EXPECT_EQ(CountMemoryKills(root_), 7);
}

TEST_F(HostMemoryTest, NothingKnown_SaysNothing) {
  EXPECT_FALSE(ReadHostMemory(root_).Least().has_value());
  EXPECT_EQ(CountMemoryKills(root_), 0);
}

TEST_F(HostMemoryTest, KillsOfTheMachine_CountWhereGroupsDoNotSay) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/vmstat", "oom_kill_something 9\noom_kill 2\n");
  EXPECT_EQ(CountMemoryKills(root_), 2);
  Write("/sys/fs/cgroup/memory.events", "low 0\noom 1\noom_kill 1\n");
  EXPECT_EQ(CountMemoryKills(root_), 1);
}

TEST(OpenFileLimit, SoftLimit_IsRaisedToTheHardOne) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 64);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const int64_t raised = RaiseOpenFileLimit();
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(raised, static_cast<int64_t>(limit.rlim_cur));
  EXPECT_EQ(limit.rlim_cur, std::min<rlim_t>(before.rlim_max, 1'000'000));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace weft::host_memory_test
