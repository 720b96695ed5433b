// Lets runs with `replan` go on under better schedules: it hears their jobs, steps and transfers, has the
// answers to the questions of their watches (replan_watch.h) found on a thread of its own, and hands the core
// a ReplanRun for a run that should move.
//
// Links are measured by the transfers of runs on several processes. These are asked for them at most once a
// second, and not before they have answered.
//
// One search at a time, of at most a few seconds; a run has at most one that waits. A run whose answer comes
// when it has ended, or has begun again, goes on as it is.
//
// Threads: construction, destruction and all methods on the loop's thread; `post` and the searches on the
// own one. Destruction waits for the search under way, which is told to stop.
#ifndef WEFT_COORDINATOR_SHELL_REPLANNER_H_
#define WEFT_COORDINATOR_SHELL_REPLANNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/core/events.h"
#include "coordinator/replanning/replan_watch.h"
#include "coordinator/shell/request_queue.h"

namespace weft {

class Replanner {
 public:
  // `post` runs work on the loop's thread, where `move` takes what a run should do. `ask` has the processes
  // of a run tell their spans, which come as Spans; `told` is called behind these.
  using Post = std::function<void(std::function<void()>)>;
  using Move = std::function<void(ReplanRun)>;
  using Ask = std::function<void(uint64_t run, std::function<void()> told)>;
  Replanner(Post post, Move move, Ask ask);
  ~Replanner();
  Replanner(const Replanner&) = delete;
  Replanner& operator=(const Replanner&) = delete;

  // Watches the run from now on, if it wants that.
  void Add(uint64_t run, const RunPlan& plan);
  // Likewise a run that was stored.
  void Add(const RestoreRun& restored);
  void Hear(const JobsEnded& jobs);
  void Hear(const StepDone& step);
  void Hear(const Spans& spans);
  void Hear(const RunInfo& run);
  void Hear(const Replanned& replanned);

 private:
  struct Watched {
    ReplanWatch watch;
    bool spread = false;    // the run has several processes
    bool asking = false;    // its processes are telling their spans
    int64_t ask_again = 0;  // time from which they may be asked again
  };
  struct Request {
    uint64_t run = 0;
    WindowQuestion question;
  };
  // Result of a search: the answer and, if there is a better schedule, the form of it that the core takes.
  struct Found {
    absl::StatusOr<WindowAnswer> answer;
    ReplanRun replan;
  };
  void AskTransfers(uint64_t run, Watched* watched);
  void Search();
  Found Answer(const Request& request) const;
  void Take(uint64_t run, Found found);

  const Post post_;
  const Move move_;
  const Ask ask_;
  std::map<uint64_t, Watched> watches_;  // by run; of the loop's thread
  std::atomic<bool> stopping_ = false;
  RequestQueue<Request> requests_;
  std::thread thread_;  // begins with the first run that is watched
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_SHELL_REPLANNER_H_
