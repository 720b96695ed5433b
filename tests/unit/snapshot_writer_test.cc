#include "worker/shell/loop/snapshot_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/monotonic_clock.h"
#include "base/mutex.h"

namespace weft {
namespace {

constexpr int64_t kMinute = 60'000'000'000;

TEST(SnapshotWriter, End_WaitsForWhatIsBeingWritten) {
  Notification begun, may_end;
  bool ended = false;  // of the writer's thread, which is gone when this is read
  SnapshotWriter writer([](const SnapshotWriter::Done&) {});
  writer.Seal(1, 10, [&] {
    begun.Notify();
    may_end.Wait();
    ended = true;
    return absl::OkStatus();
  });
  begun.Wait();
  EXPECT_FALSE(writer.idle());
  std::thread end([&] { EXPECT_TRUE(writer.End(MonotonicNow() + kMinute)); });
  may_end.Notify();
  end.join();
  EXPECT_TRUE(ended);
}

// A worker must be gone some seconds after SIGTERM, whatever its file system does.
TEST(SnapshotWriter, End_WhileTheFileSystemHangs_ReturnsAtItsDeadline) {
  const auto begun = std::make_shared<Notification>(), may_end = std::make_shared<Notification>();
  const auto ended = std::make_shared<Notification>();
  {
    SnapshotWriter writer([](const SnapshotWriter::Done&) { ADD_FAILURE() << "its owner is gone"; });
    writer.Seal(1, 10, [begun, may_end, ended] {
      begun->Notify();
      may_end->Wait();
      ended->Notify();
      return absl::OkStatus();
    });
    begun->Wait();
    EXPECT_FALSE(writer.End(MonotonicNow() + 1));
  }
  may_end->Notify();
  ended->Wait();
}

}  // namespace
}  // namespace weft
