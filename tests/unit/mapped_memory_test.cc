#include "worker/shell/transport/mapped_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "worker/shell/transport/receive_pool.h"

namespace weft::mapped_memory_test {
namespace {

TEST(MappedMemory, Find_InsideAndAtTheEdges_KnowsTheSegment) {
  MappedMemory memory;
  char* a = static_cast<char*>(*memory.Allocate(10'000));  // 3 pages
  char* b = static_cast<char*>(*memory.Allocate(4096));
  ASSERT_TRUE(memory.Find(a, 1));
  EXPECT_EQ(memory.Find(a, 12'288)->offset, 0u);
  EXPECT_EQ(memory.Find(a, 12'288)->segment.bytes, 12'288u);
  EXPECT_EQ(memory.Find(a + 5000, 7288)->offset, 5000u);
  EXPECT_FALSE(memory.Find(a, 12'289));
  EXPECT_FALSE(memory.Find(a + 5000, 7289));
  EXPECT_NE(memory.Find(b, 1)->segment.id, memory.Find(a, 1)->segment.id);
  int elsewhere = 0;
  EXPECT_FALSE(memory.Find(&elsewhere, sizeof(elsewhere)));
  const uint64_t id = memory.Find(a, 1)->segment.id;
  memory.Free(a, 10'000);
  EXPECT_FALSE(memory.Find(a, 1));
  EXPECT_EQ(memory.TakeFreed(), std::vector<uint64_t>{id});
  EXPECT_TRUE(memory.TakeFreed().empty());
}

TEST(MappedMemory, Free_OfWhatItDidNotHandOut_EndsTheProcess) {
  MappedMemory memory;
  char x;
  EXPECT_DEATH(memory.Free(&x, 1), "did not hand out");
}

TEST(MappedMemory, Allocate_BeyondTheLimitOfOpenFiles_IsAnErrorThatSaysSo) {
  // The test uses up the limit in a child, because it cannot be used up here without harm.
  const pid_t child = fork();
  if (child == 0) {
    MappedMemory memory;
    for (int i = 0; i < 1'000'000; ++i) {
      const absl::StatusOr<void*> segment = memory.Allocate(1);
      if (segment.ok()) continue;
      const bool good = absl::IsResourceExhausted(segment.status()) &&
                        segment.status().message().find("ulimit -n") != absl::string_view::npos;
      _exit(good ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(PeerSegments, Map_OfAnotherProcess_SeesItsBytesAndOutlivesIt) {
  int from_child[2];
  ASSERT_EQ(pipe(from_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    MappedMemory memory;
    char* data = static_cast<char*>(*memory.Allocate(8192));
    std::strcpy(data + 5000, "hello");
    const SegmentRef segment = memory.Find(data, 1)->segment;
    if (write(from_child[1], &segment, sizeof(segment)) != sizeof(segment)) _exit(1);
    pause();
    _exit(0);
  }
  SegmentRef segment;
  ASSERT_EQ(read(from_child[0], &segment, sizeof(segment)), static_cast<ssize_t>(sizeof(segment)));
  PeerSegments segments;
  auto mapping = segments.Map(1, child, segment);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(segments.Map(1, child, segment)->get(), mapping->get());  // mapped once
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  segments.ForgetAll(1);
  EXPECT_STREQ((*mapping)->base() + 5000, "hello");
  EXPECT_TRUE(absl::IsNotFound(segments.Map(1, child, segment).status()));
}

TEST(PeerSegments, Map_OfSomethingElse_IsRefused) {
  MappedMemory memory;
  const SegmentRef good = memory.Find(*memory.Allocate(8192), 1)->segment;
  PeerSegments segments;
  SegmentRef other_file = good, too_long = good, closed = good;
  other_file.inode += 1;
  too_long.bytes += 4096;
  closed.descriptor = 999'999;
  EXPECT_TRUE(absl::IsInvalidArgument(segments.Map(1, getpid(), other_file).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(segments.Map(1, getpid(), too_long).status()));
  EXPECT_TRUE(absl::IsNotFound(segments.Map(1, getpid(), closed).status()));
  // A file that its owner could shrink under the reader, and a pipe.
  const int shrinkable = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(shrinkable, 8192), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int fd : {shrinkable, ends[0]}) {
    struct stat info;
    ASSERT_EQ(fstat(fd, &info), 0);
    const SegmentRef bad{2, static_cast<uint64_t>(info.st_ino), 8192, fd};
    EXPECT_TRUE(absl::IsInvalidArgument(segments.Map(1, getpid(), bad).status()));
  }
  EXPECT_TRUE(segments.Map(1, getpid(), good).ok());
}

TEST(PeerSegments, Mapping_IsReadOnly) {
  MappedMemory memory;
  const SegmentRef segment = memory.Find(*memory.Allocate(4096), 1)->segment;
  PeerSegments segments;
  const std::shared_ptr<PeerMapping> mapping = *segments.Map(1, getpid(), segment);
  const auto write = [&] {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would take the signal for a fault of the test
    *static_cast<volatile char*>(mapping->base()) = 1;
  };
  EXPECT_EXIT(write(), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(ReceivePool, Blocks_AreDistinctAlignedAndReused) {
  auto pool = ReceivePool::Create(std::make_shared<MappedMemory>(), 64 << 20);
  for (const size_t bytes :
       {size_t{1}, size_t{256}, size_t{257}, size_t{5000}, size_t{262'145}, size_t{9'000'001}}) {
    SCOPED_TRACE(bytes);
    std::shared_ptr<void> a = *pool->Get(bytes), b = *pool->Get(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % 64, 0u);
    std::memset(a.get(), 1, bytes);
    std::memset(b.get(), 2, bytes);
    EXPECT_EQ(static_cast<char*>(a.get())[bytes - 1], 1);
    void* const place = a.get();
    a.reset();
    EXPECT_EQ(pool->Get(bytes)->get(), place);
  }
}

TEST(ReceivePool, IdleBytes_BeyondTheLimit_GoBackToTheSource) {
  auto memory = std::make_shared<MappedMemory>();
  auto pool = ReceivePool::Create(memory, 5 << 20);
  std::vector<std::shared_ptr<void>> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*pool->Get(2 << 20));
  blocks.clear();
  EXPECT_EQ(memory->TakeFreed().size(), 2u);  // two of four fit the limit
}

TEST(ReceivePool, Blocks_OutliveThePoolsOwnerOnAnyThread) {
  std::shared_ptr<void> block;
  {
    auto pool = ReceivePool::Create(std::make_shared<MappedMemory>(), 0);
    block = *pool->Get(3'000'000);
  }
  std::memset(block.get(), 1, 3'000'000);
  std::thread([&] { block.reset(); }).join();
}

}  // namespace
}  // namespace weft::mapped_memory_test
