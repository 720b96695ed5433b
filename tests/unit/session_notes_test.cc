#include "worker/shell/session_notes.h"

#include <gtest/gtest.h>

namespace weft::session_notes_test {
namespace {

Assign Begin(uint64_t run) {
  Assign assign;
  assign.run = run;
  assign.leases.resize(2);
  assign.process_of_rank = {0, 0, 1, 1};
  assign.peers.resize(2);
  return assign;
}

TEST(SessionNotes, LifeOfARun_IsTold) {
  SessionNotes notes;
  EXPECT_EQ(notes.OnReceived(Welcome{1, 3}), "joined as process 3");
  EXPECT_EQ(notes.run(), 0u);
  EXPECT_EQ(notes.OnReceived(Begin(7)), "run 7 begins: 2 of its 4 ranks here, 2 processes in all");
  EXPECT_EQ(notes.run(), 7u);
  EXPECT_EQ(notes.OnSent(Prepared{7}), "");
  EXPECT_EQ(notes.OnReceived(Grant{7, 0, {}, {}}), "");
  EXPECT_EQ(notes.OnReceived(Finish{7}), "run 7: all jobs are done");
  EXPECT_EQ(notes.OnSent(Finished{7, {}}), "run 7 is finished");
  EXPECT_EQ(notes.run(), 0u);
}

TEST(SessionNotes, EndsOfARun_AreToldWithTheReason) {
  SessionNotes notes;
  notes.OnReceived(Begin(1));
  EXPECT_EQ(notes.OnReceived(Abort{1, "the run was cancelled"}), "run 1 was ended: the run was cancelled");
  EXPECT_EQ(notes.run(), 0u);
  notes.OnReceived(Begin(2));
  EXPECT_EQ(notes.OnSent(Failed{2, "no memory"}), "run 2 fails here: no memory");
  EXPECT_EQ(notes.run(), 0u);
  notes.OnReceived(Begin(3));
  EXPECT_EQ(notes.OnReceived(Abort{2, "late"}), "run 2 was ended: late");
  EXPECT_EQ(notes.run(), 3u) << "of an earlier run";
}

TEST(SessionNotes, Shutdown_IsKept) {
  SessionNotes notes;
  EXPECT_FALSE(notes.shutdown().has_value());
  EXPECT_EQ(notes.OnReceived(Shutdown{}), "it leaves");
  EXPECT_EQ(notes.shutdown(), "");
  EXPECT_EQ(notes.OnReceived(Shutdown{"it got the signal Terminated"}),
            "the coordinator ends: it got the signal Terminated");
  EXPECT_EQ(notes.shutdown(), "it got the signal Terminated");
}

}  // namespace
}  // namespace weft::session_notes_test
