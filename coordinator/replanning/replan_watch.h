// Watches the speeds of a run's ranks and links, and says when the run should go on under a better schedule.
//
// The jobs of a step are a window; of short steps, those of as many as make up a few periods of a quota, in
// which the kernel lets a process run and stops it. The times of jobs come with their delays (Completion),
// because a process is mostly stopped between its jobs. Behind each window there is a question
// (better_schedule.h), which somebody answers on a thread of his own; meanwhile the next window begins. The
// run moves where the answers to three windows in a row save more than `replan.gain` of a step's time.
//
// Transfers come later than the jobs, since processes tell them when they are asked, behind each question. So
// the next one has those that were told since. Without any, links are not known: such a question
// stands between two that have some as if it had not been asked.
//
// Four rules keep it from moving to and fro:
//   1. A hiccup is in one window or two; a move takes three in a row.
//   2. The first steps of an attempt, which are slower, are in no window.
//   3. From a move to the next there are at least `replan.steps` steps.
//   4. To move back has to save as much again. A question whose speeds and slow links are about those of the
//      last one, which found no gain, is not asked again. A slow link that the run has left stays in the
//      questions with what it took then, because nothing passes over it any more, until a transfer shows that
//      it is as fast as usual.
// Ranks that nothing else compares, and links, are compared with the first windows of the run
// (measured_jobs.h, measured_links.h), as long as the ranks stay where they are.
//
// Pure; one thread at a time.
#ifndef WEFT_COORDINATOR_REPLANNING_REPLAN_WATCH_H_
#define WEFT_COORDINATOR_REPLANNING_REPLAN_WATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/replanning/better_schedule.h"
#include "coordinator/replanning/measured_jobs.h"
#include "coordinator/replanning/measured_links.h"
#include "run/run_spec.h"
#include "schedules/job.h"

namespace weft {

// Measurements of a window, with all that an answer needs.
struct WindowQuestion {
  std::shared_ptr<const RunSpec> run;  // under its present schedule
  MeasuredJobs jobs;
  std::optional<MeasuredJobs> before;  // of the run's first windows
  MeasuredTransfers transfers;
  std::shared_ptr<const MeasuredTransfers> transfers_before;  // of the first questions
  RankLinks left;                                             // slow links that the run has left
  // Speeds and slow links at which there was nothing to gain; no speeds if it is not known of any.
  std::vector<double> settled;
  std::vector<SlowLink> settled_links;
  int32_t restarts = 0;  // of the run, as RunInfo counts them
};

struct WindowAnswer {
  BetterSchedule better;
  RankCosts measured;
  RankLinks links;     // with those that the run has left
  bool timed = false;  // the question had transfers
  int32_t restarts = 0;
};

// Answers the question, on any thread.
absl::StatusOr<WindowAnswer> AnswerOf(const WindowQuestion& question,
                                      const std::function<bool()>& stop = nullptr);

class ReplanWatch {
 public:
  ReplanWatch(std::shared_ptr<const RunSpec> run, int ranks);

  // Goes on with the slow links that the attempt under way has left. Call it before all else. `restarts`: how
  // often the run has begun again.
  void Restore(int32_t restarts, RankLinks left);
  // Notes that an attempt has begun, or goes on: the run has begun again so often.
  void Began(int32_t restarts);
  // Notes that the run goes on under another schedule. The next attempt has its ranks where they are; one
  // behind it, if that has not run, does not.
  void Replanned(std::shared_ptr<const RunSpec> run, int32_t step);
  void JobEnded(Rank rank, const Job& job, double seconds);
  // Notes that a tensor came from rank to rank. The same transfer may be told more than once.
  void TensorArrived(Rank from, Rank to, const TransferKey& key, const TimedTransfer& transfer);
  // Notes the end of a step. Returns a question where a window ends with it; none while one is unanswered.
  std::optional<WindowQuestion> StepEnded(int32_t step);
  // Takes the answer to the last question; an error if there is none. Returns true if the run should move.
  bool Take(const absl::StatusOr<WindowAnswer>& answer);

 private:
  void BeginWindow(int32_t first_step);
  MeasuredTransfers TakeTransfers();
  bool Count(const WindowAnswer& answer, bool gains);

  std::shared_ptr<const RunSpec> run_;
  MeasuredJobs jobs_;                   // of the window
  std::vector<double> seconds_;         // of those jobs, by rank
  MeasuredTransfers transfers_;         // told since the last question
  int32_t told_step_ = 0;               // first step whose transfers are of the next question
  int32_t last_step_ = 0;               // of the transfers that were told
  std::optional<MeasuredJobs> before_;  // of the first windows
  // Likewise. Every question shares it.
  std::shared_ptr<const MeasuredTransfers> transfers_before_ = std::make_shared<MeasuredTransfers>();
  int transfers_told_ = 0;  // questions whose transfers are in transfers_before_
  int windows_before_ = 0;  // in before_
  int32_t restarts_ = -1;
  int32_t first_step_ = -1;  // of the window; -1 until the attempt has ended a step
  // The step with which the run went on under its schedule; -1 for the one that it began with.
  int32_t moved_step_ = -1;
  bool keeps_ = false;   // the next attempt has its ranks where they are
  bool asked_ = false;   // a question is unanswered
  int gains_ = 0;        // answers in a row that would gain enough
  int timed_gains_ = 0;  // likewise of those to questions with transfers
  RankLinks left_;       // slow links for which the run has moved
  RankLinks leaving_;    // likewise of the move that it was last told to make
  std::vector<double> settled_;
  std::vector<SlowLink> settled_links_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_REPLANNING_REPLAN_WATCH_H_
