// Keeps the loss and the memory of a run over its whole length, for pictures of a run that goes on.
//
// Memory is bounded: of a series that has become too long, every second value is dropped, and from then on
// every second one is left out. Pure; one thread at a time.
#ifndef WEFT_COORDINATOR_RECORD_RUN_HISTORY_H_
#define WEFT_COORDINATOR_RECORD_RUN_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/drawing/drawing_bytes.h"
#include "schedules/drawing/drawing_loss.h"
#include "schedules/job.h"

namespace weft {

// A series of values that come one by one, evenly thinned to at most `most`; the last one is always there.
template <typename Value>
class ThinnedSeries {
 public:
  explicit ThinnedSeries(size_t most) : most_(most) {}

  void Add(Value value) {
    const bool kept = count_++ % stride_ == 0;
    if (!values_.empty() && last_is_extra_) values_.pop_back();
    last_is_extra_ = !kept;
    values_.push_back(std::move(value));
    if (values_.size() > most_) Thin();
  }

  // Drops the newest values for which the predicate holds.
  template <typename Predicate>
  void DropNewest(Predicate predicate) {
    while (!values_.empty() && predicate(values_.back())) values_.pop_back(), last_is_extra_ = false;
  }

  const std::vector<Value>& values() const { return values_; }

 private:
  void Thin() {
    Value newest = values_.back();
    if (last_is_extra_) values_.pop_back();
    last_is_extra_ |= values_.size() % 2 == 0;
    std::vector<Value> kept;
    for (size_t i = 0; i < values_.size(); i += 2) kept.push_back(std::move(values_[i]));
    if (last_is_extra_) kept.push_back(std::move(newest));
    values_ = std::move(kept);
    stride_ *= 2;
  }

  const size_t most_;
  size_t stride_ = 1, count_ = 0;
  bool last_is_extra_ = false;  // true if the last value is there only until the next one
  std::vector<Value> values_;
};

class RunHistory {
 public:
  // A step that is made again takes the place of the one before, and of all behind it.
  void OnLoss(int32_t step, double loss);
  void OnValidation(const Validation& validation);
  // Takes the bytes that are alive in each of these ranks, in the place of what was known of them.
  void OnReport(const std::vector<RankReport>& ranks);

  const std::vector<LossPoint>& losses() const { return losses_.values(); }
  const std::vector<LossPoint>& validations() const { return validations_.values(); }
  // Sums over all ranks, over the time that the run has been going on.
  const std::vector<LiveBytes>& bytes() const { return bytes_.values(); }

 private:
  static constexpr size_t kLosses = 2000, kSamples = 500;
  static constexpr double kSampleSeconds = 0.5;  // the reports of several processes make one sample

  ThinnedSeries<LossPoint> losses_{kLosses}, validations_{kLosses};
  ThinnedSeries<LiveBytes> bytes_{kSamples};
  std::map<Rank, std::map<std::string, int64_t>> of_rank_;
  double attempt_began_ = 0;  // seconds of the attempts before the present one
  double attempt_ = 0;        // seconds of the present one, as last reported
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_RUN_HISTORY_H_
