#include "worker/shell/loop/loop_events.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::loop_events_test {
namespace {

using ::testing::ElementsAre;

class LoopEventsTest : public ::testing::Test {
 protected:
  std::vector<std::string> Noted() const {
    std::vector<std::string> noted;
    FlightRing::Event event;
    for (uint64_t n = 0; n < ring_.next(); ++n) {
      if (ring_.Read(n, &event)) noted.emplace_back(event.view());
    }
    return noted;
  }

  FlightRing ring_{16};
  std::vector<std::string> stalls_;
  const LoopEvents events_{&ring_, [this](const std::string& why) { stalls_.push_back(why); }};
};

TEST_F(LoopEventsTest, Jobs_AreNamedWithTheirRankAndFailure) {
  const Job forward = Job::Compute(3, 1, 5, JobKind::kForward), update = Job::Update(3, 1, 0);
  events_.TaskBegins(1, {"", forward, 2});
  events_.JobEnds(2, 2, forward, absl::OkStatus(), /*launched=*/true);
  events_.DoneOnDevice(3, 2, forward, absl::OkStatus());
  events_.JobEnds(4, 2, update, absl::InternalError("no \"memory\""), /*launched=*/false);
  events_.TaskBegins(5, {"preparing", std::nullopt, 2});
  events_.PartEnds(6, {"preparing", std::nullopt, 2});
  EXPECT_THAT(Noted(),
              ElementsAre("event=job_begins rank=2 kind=forward step=3 stage=1 microbatch=5",
                          "event=job_launched rank=2 kind=forward step=3 stage=1 microbatch=5",
                          "event=job_done_on_device rank=2 kind=forward step=3 stage=1 microbatch=5",
                          R"(event=job_fails rank=2 kind=update step=3 stage=1 member=0 err="no \"memory\"")",
                          R"(event=task_begins rank=2 task="preparing")",
                          R"(event=task_ends rank=2 task="preparing")"));
}

TEST_F(LoopEventsTest, TensorsAndGrants_NameWhoHasThem) {
  TensorKey key;
  key.step = 3;
  key.stage = 1;
  key.microbatch = 5;
  key.producer = 1;
  key.consumer = 2;
  events_.Wants(1, 4, key);
  events_.Received(2, Grant{7, 2, {}, {Job::Update(3, 1, 0), Job::Compute(4, 1, 0, JobKind::kForward)}});
  events_.Received(3, Finish{7});
  EXPECT_THAT(Noted(),
              ElementsAre("event=wants process=4 tensor=activation step=3 stage=1 microbatch=5 part=0 "
                          "producer=1 consumer=2",
                          "event=granted run=7 rank=2 jobs=2 kind=forward step=4 stage=1 microbatch=0"));
}

TEST_F(LoopEventsTest, RunThatFails_IsAStallWhereATimeIsOver) {
  events_.RunFails(1, 7, absl::UnavailableError("a peer is gone"));
  EXPECT_THAT(stalls_, ElementsAre());
  events_.RunFails(2, 7, absl::DeadlineExceededError("the device has not done it"));
  EXPECT_THAT(stalls_, ElementsAre("the device has not done it"));
  EXPECT_THAT(Noted(), ElementsAre(R"(event=run_fails run=7 err="a peer is gone")",
                                   R"(event=run_fails run=7 err="the device has not done it")",
                                   R"(event=stall why="the device has not done it")"));
}

TEST(LoopEvents, NoRing_NothingIsNotedAndAStallIsToldAllTheSame) {
  int stalls = 0;
  const LoopEvents events(nullptr, [&stalls](const std::string&) { ++stalls; });
  events.TaskBegins(1, {"preparing", std::nullopt, 2});
  events.Received(2, Grant{7, 2, {}, {Job::Update(3, 1, 0)}});
  events.Stalls(3, "why");
  EXPECT_EQ(stalls, 1);
}

}  // namespace
}  // namespace weft::loop_events_test
