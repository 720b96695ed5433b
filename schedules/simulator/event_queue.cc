#include "schedules/simulator/event_queue.h"

namespace weft {

void EventQueue::AddArrival(double time, JobId job, double sent) {
  if (free_.empty()) {
    free_.push_back(static_cast<int64_t>(arrivals_.size()));
    arrivals_.emplace_back();
  }
  const int64_t place = free_.back();
  free_.pop_back();
  arrivals_[place] = {job, true, sent};
  heap_.Add({time, ~place});
}

EventQueue::Event EventQueue::TakeArrival(int64_t place) {
  free_.push_back(place);
  return arrivals_[place];
}

}  // namespace weft
