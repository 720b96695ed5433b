// Orders the events of a simulation by time: ends of jobs, and arrivals of what they sent. An entry of the
// heap is a time and one number, so that little moves; what else there is of an arrival is kept beside it.
// Private to the simulator. Not thread-safe; no allocation in steady state.
#ifndef WEFT_SCHEDULES_SIMULATOR_EVENT_QUEUE_H_
#define WEFT_SCHEDULES_SIMULATOR_EVENT_QUEUE_H_

#include <cstdint>
#include <vector>

#include "schedules/dispatch/min_heap.h"
#include "schedules/graph/progress.h"

namespace weft {

class EventQueue {
 public:
  // A job ends, or an input arrives for it that was sent at a time.
  struct Event {
    JobId job;
    bool arrival;
    double sent;
  };

  bool empty() const { return heap_.empty(); }
  // Returns the time of the next event.
  double time() const { return heap_.top().time; }

  void AddEnd(double time, JobId job) { heap_.Add({time, job}); }
  void AddArrival(double time, JobId job, double sent);
  // Takes the next event. The order of events of one time depends only on the events before.
  Event Take() {
    const int64_t what = heap_.Take().what;
    return what >= 0 ? Event{what, false, 0} : TakeArrival(~what);
  }

 private:
  struct Entry {
    double time;
    int64_t what;  // the job that ends; of an arrival ~place
    bool IsBefore(const Entry& o) const { return time < o.time; }
  };

  Event TakeArrival(int64_t place);

  MinHeap<Entry> heap_;
  std::vector<Event> arrivals_;  // by place
  std::vector<int64_t> free_;    // places
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_EVENT_QUEUE_H_
