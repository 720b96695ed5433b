// The validator's thread: what is told of validations, and what is not.
#include "worker/shell/loop/validator.h"

#include <atomic>
#include <deque>
#include <string>

#include "base/mutex.h"
#include "gtest/gtest.h"

namespace weft::validator_test {
namespace {

constexpr int64_t kPatience = 60'000'000'000;

class ValidatorTest : public ::testing::Test {
 protected:
  // Waits until a validation has been told to be done.
  Validation Await() {
    MutexLock lock(mu_);
    while (reported_.empty() || !reported_.front().done()) {
      if (!reported_.empty()) {
        reported_.pop_front();
      } else if (changed_.WaitWithTimeout(mu_, kPatience)) {
        ADD_FAILURE() << "nothing is told";
        return {};
      }
    }
    const Validation validation = reported_.front();
    reported_.pop_front();
    return validation;
  }
  bool Quiet() {
    MutexLock lock(mu_);
    return reported_.empty();
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<Validation> reported_;
  Validator validator_{[this](const Validation& validation) {
    MutexLock lock(mu_);
    reported_.push_back(validation);
    changed_.Signal();
  }};
};

Evaluation Half(int64_t samples) {
  const auto all = static_cast<double>(samples);
  return {"4", samples, 10, samples, samples / 2, {0.25 * all, all}, {}};
}

TEST_F(ValidatorTest, OneAfterTheOther_EachIsToldOnceWithItsFigures) {
  for (const int step : {4, 8}) {
    validator_.Begin(7, step, [step](const EvaluationProgress& on_progress) -> absl::StatusOr<Evaluation> {
      EXPECT_TRUE(on_progress(Half(2)));
      if (step == 8) return absl::UnavailableError("cannot read a.txt");
      EXPECT_TRUE(on_progress(Half(10)));
      return Half(10);
    });
  }
  const Validation good = Await();
  EXPECT_EQ(good.run, 7u);
  EXPECT_EQ(good.step, 4);
  EXPECT_EQ(good.samples, 10);
  EXPECT_DOUBLE_EQ(good.loss, 0.25);
  EXPECT_DOUBLE_EQ(good.metrics.at("accuracy"), 0.5);
  EXPECT_EQ(good.failure, "");
  const Validation failed = Await();
  EXPECT_EQ(failed.step, 8);
  EXPECT_EQ(failed.failure, "cannot read a.txt");
}

// It ends at its next batch, nobody hears of it, and what is to be done then is done.
TEST_F(ValidatorTest, Cancel_EndsTheValidationUntold) {
  Notification begun, cancelled, cleaned;
  std::atomic<bool> went_on{true};
  validator_.Begin(7, 4, [&](const EvaluationProgress& on_progress) -> absl::StatusOr<Evaluation> {
    begun.Notify();
    cancelled.Wait();
    went_on = on_progress(Half(2));
    return Half(10);
  });
  validator_.Begin(7, 8, [](const EvaluationProgress&) -> absl::StatusOr<Evaluation> { return Half(10); });
  begun.Wait();
  validator_.Cancel([&] { cleaned.Notify(); });
  cancelled.Notify();
  ASSERT_TRUE(cleaned.WaitWithTimeout(kPatience));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(Quiet());
  validator_.Begin(9, 2, [](const EvaluationProgress&) -> absl::StatusOr<Evaluation> { return Half(10); });
  EXPECT_EQ(Await().run, 9u) << "the next run's";
}

}  // namespace
}  // namespace weft::validator_test
