#include "client/training/device_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::device_flags_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LinesAboutGraphs, WordsOfAWorker_AreTheWholeLinesAboutThem) {
  EXPECT_THAT(LinesAboutGraphs(""), IsEmpty());
  EXPECT_THAT(LinesAboutGraphs("weft-worker: device cuda:0\n"), IsEmpty());
  EXPECT_THAT(
      LinesAboutGraphs("here on stage 2 runs without graphs, its beginning is lost\n"
                       "weft-worker: device cuda:0\n"
                       "weft: rank 3 runs without graphs, with the same bits: no room\n"
                       "weft: from here on stage 1 runs without graphs, with the same bits: it draws\n"
                       "weft: rank 4 runs without graphs, with the sa"),
      ElementsAre("rank 3 runs without graphs, with the same bits: no room",
                  "from here on stage 1 runs without graphs, with the same bits: it draws"));
}

}  // namespace
}  // namespace weft::device_flags_test
