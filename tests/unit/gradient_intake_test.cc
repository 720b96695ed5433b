#include "worker/core/gradient_intake.h"

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::gradient_intake_test {
namespace {

constexpr JobId kReduce = 40;

class GradientIntakeTest : public ::testing::Test {
 protected:
  const Graph graph_{WithoutTerms(*MakeSchedule("ddp", {}, /*stages=*/1, /*microbatches=*/4))};
  GradientIntake intake_{graph_};
};

TEST_F(GradientIntakeTest, Consumers_AreTheJobsThatSumGradientsOfOthers) {
  const Job reduce = Job::Reduce(0, 0, 0), update = Job::Update(0, 0, 0);
  EXPECT_TRUE(intake_.IsConsumer(reduce));
  EXPECT_FALSE(intake_.IsConsumer(update)) << "it gets the sum";
  EXPECT_FALSE(intake_.IsConsumer(Job::Compute(0, 0, 1, JobKind::kBackward)));
}

TEST_F(GradientIntakeTest, Gradients_AreTakenInTheOrderOfMicrobatches) {
  intake_.Arrived(kReduce, 2);
  EXPECT_FALSE(intake_.HasNext(kReduce)) << "the first has not come";
  intake_.Arrived(kReduce, 0);
  ASSERT_TRUE(intake_.HasNext(kReduce));
  GradientIntake::Range taken = intake_.Take(kReduce);
  EXPECT_EQ(taken.first, 0);
  EXPECT_EQ(taken.end, 1);
  EXPECT_FALSE(intake_.HasNext(kReduce));
  intake_.Arrived(kReduce, 1);
  taken = intake_.Take(kReduce);
  EXPECT_EQ(taken.first, 1);
  EXPECT_EQ(taken.end, 3) << "with the one that came early";
  taken = intake_.Take(kReduce);
  EXPECT_EQ(taken.first, taken.end) << "each once";
}

TEST_F(GradientIntakeTest, JobsOfOtherNumbers_TakeTheirOwn) {
  intake_.Arrived(kReduce, 0);
  EXPECT_FALSE(intake_.HasNext(kReduce + 1));
  EXPECT_TRUE(intake_.HasNext(kReduce));
}

}  // namespace
}  // namespace weft::gradient_intake_test
