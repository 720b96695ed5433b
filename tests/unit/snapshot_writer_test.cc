#include "worker/shell/loop/snapshot_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/monotonic_clock.h"
#include "base/mutex.h"

namespace weft::snapshot_writer_test {
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

std::shared_ptr<const StageSnapshot> Piece(int stage) {
  auto piece = std::make_shared<StageSnapshot>();
  piece->layout.stage = stage;
  return piece;
}

TEST(SnapshotWriter, TwoPieces_AreWrittenAtTheSameTimeAndReportedOnce) {
  Notification begun[2], reported;
  SnapshotWriter writer([&](const SnapshotWriter::Done& done) {
    EXPECT_EQ(done.step, 10);
    EXPECT_EQ(done.failure, "");
    reported.Notify();  // a second time would end the test
  });
  writer.Expect(1, 10, 2, [&](const StageSnapshot& piece) {
    begun[piece.layout.stage].Notify();
    begun[1 - piece.layout.stage].Wait();
    return absl::OkStatus();
  });
  writer.Write(1, 10, Piece(0));
  writer.Write(1, 10, Piece(1));
  reported.Wait();
}

// A device is asked on these threads whether a piece is there.
TEST(SnapshotWriter, ThreadThatWrites_HasBegunAsItWasAskedTo) {
  Notification reported;
  thread_local int begun = 0;
  SnapshotWriter writer([&](const SnapshotWriter::Done&) { reported.Notify(); }, [] { ++begun; });
  int before = -1;
  writer.Expect(1, 10, 1, [&](const StageSnapshot&) {
    before = begun;
    return absl::OkStatus();
  });
  writer.Write(1, 10, Piece(0));
  reported.Wait();
  EXPECT_EQ(before, 1);
  EXPECT_EQ(begun, 0) << "on this thread";
}

// The receiver of a failure removes the folder. A piece that is still being written would come into it again.
TEST(SnapshotWriter, OneOfTwoPiecesFails_IsReportedWhenTheOtherHasEnded) {
  Notification failed, may_end, reported;
  bool ended = false;  // before the report, which the other thread sees
  SnapshotWriter writer([&](const SnapshotWriter::Done& done) {
    EXPECT_EQ(done.failure, "the disk is full");
    EXPECT_TRUE(ended);
    reported.Notify();
  });
  writer.Expect(1, 10, 3, [&](const StageSnapshot& piece) -> absl::Status {
    if (piece.layout.stage == 2) ADD_FAILURE() << "it comes after the failure";
    if (piece.layout.stage == 0) {
      failed.Notify();
      return absl::UnavailableError("the disk is full");
    }
    may_end.Wait();
    ended = true;
    return absl::OkStatus();
  });
  writer.Write(1, 10, Piece(1));
  writer.Write(1, 10, Piece(0));
  failed.Wait();
  may_end.Notify();
  reported.Wait();
  writer.Write(1, 10, Piece(2));
}

}  // namespace
}  // namespace weft::snapshot_writer_test
