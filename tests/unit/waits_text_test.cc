// Tests how the waits of a run are shown.
#include "client/runs/waits_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/second.h"

namespace weft::waits_text_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Job Forward(int stage) { return Job::Compute(17, stage, 3, JobKind::kForward); }

// A chain of three ranks; the process of the last is silent. The fourth computes.
RunWaits ChainOfThree() {
  RunWaits waits{3, "gpt", RunState::kRunning, "", 12 * kSecond};
  waits.roots = {{"silent", -1, 1, std::nullopt, 13 * kSecond, "process 1 (w1) has said nothing for 13 s"}};
  waits.ranks = {
      {0,
       0,
       "waits",
       Forward(2),
       12 * kSecond,
       MissingInput{TensorKind::kActivation, Forward(1), 1},
       2,
       0,
       {1, 2}},
      {1, 0, "waits", Forward(1), 11 * kSecond, MissingInput{TensorKind::kOrder, Forward(0), 2}, 0, 0, {2}},
      {2, 1, "silent", std::nullopt, 13 * kSecond, std::nullopt, 0, 0},
      {3, 0, "computes", Forward(5), kSecond}};
  return waits;
}

TEST(WaitsText, ChainToASilentProcess_NamesItOnceAndWhatEachRankWaitsFor) {
  EXPECT_EQ(
      WaitsText(ChainOfThree(), -1),
      "run 3 (gpt) is running; no job has ended for 12 s\n"
      "root 0: process 1 (w1) has said nothing for 13 s\n"
      "        ranks 0, 1 wait for it\n"
      "\n"
      "rank  does       for  job          missing input                         made by              root\n"
      "   0  waits     12 s  F s2 m3 t17  activation of F s1 m3 t17 and 2 more  rank 1, waits 11 s      0\n"
      "   1  waits     11 s  F s1 m3 t17  end of F s0 m3 t17                    rank 2, silent 13 s     0\n"
      "   2  silent    13 s  -            -                                     -                       0\n"
      "   3  computes   1 s  F s5 m3 t17  -                                     -                       -\n");
}

TEST(WaitsText, OfOneRank_HasItsChainAlone) {
  EXPECT_THAT(WaitsText(ChainOfThree(), 1), AllOf(HasSubstr("\n   1  waits"), HasSubstr("\n   2  silent"),
                                                  Not(HasSubstr("\n   0  ")), Not(HasSubstr("computes"))));
  EXPECT_THAT(WaitsText(ChainOfThree(), 3), AllOf(HasSubstr("computes"), Not(HasSubstr("root 0: "))));
}

TEST(WaitsText, RunThatWaitsForWorkers_IsOneSentence) {
  const RunWaits waits{3, "gpt", RunState::kWaiting, "needs 2 worker processes, 0 are free"};
  EXPECT_EQ(WaitsText(waits, -1), "run 3 (gpt) is waiting: needs 2 worker processes, 0 are free\n");
  EXPECT_FALSE(StandsStill(waits));
  EXPECT_TRUE(StandsStill(ChainOfThree()));
}

TEST(WaitsJson, ChainOfThree_HasRootsAndRanksUnderStableKeys) {
  const auto json = WaitsJson(ChainOfThree(), -1);
  EXPECT_EQ(json["run"], "gpt");
  EXPECT_EQ(json["number"], 3);
  EXPECT_EQ(json["still_seconds"], 12.0);
  EXPECT_EQ(json["roots"][0]["kind"], "silent");
  EXPECT_TRUE(json["roots"][0]["rank"].is_null());
  EXPECT_EQ(json["roots"][0]["waiting_ranks"].dump(), "[0,1]");
  EXPECT_EQ(json["ranks"].size(), 4u);
  EXPECT_EQ(json["ranks"][0].dump(),
            R"({"rank":0,"process":0,"does":"waits","job":{"name":"F s2 m3 t17","kind":"forward","step":17,)"
            R"("stage":2,"microbatch":3},"seconds":12.0,"missing":{"tensor":"activation","job":{)"
            R"("name":"F s1 m3 t17","kind":"forward","step":17,"stage":1,"microbatch":3},"rank":1},)"
            R"("further":2,"root":0})");
  EXPECT_TRUE(json["ranks"][3]["root"].is_null());
  EXPECT_EQ(WaitsJson(ChainOfThree(), 1)["ranks"].size(), 2u);
  // The chain is that of the coordinator, which also follows what no input names.
  RunWaits waits = ChainOfThree();
  waits.ranks[0].chain = {2};
  EXPECT_EQ(WaitsJson(waits, 0)["ranks"].size(), 2u);
  EXPECT_EQ(WaitsJson(waits, 0)["ranks"][1]["rank"], 2);
}

}  // namespace
}  // namespace weft::waits_text_test
