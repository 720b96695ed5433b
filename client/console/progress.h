// Shows the progress of a training on standard error: a few lines that renew themselves on a terminal, a
// plain line now and then elsewhere. Within a job of Kubeflow's Trainer, it also reports to that
// (kubeflow/status_reporter.h).
//
// Not thread-safe.
#ifndef WEFT_CLIENT_CONSOLE_PROGRESS_H_
#define WEFT_CLIENT_CONSOLE_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/console/console.h"
#include "client/console/progress_state.h"
#include "client/kubeflow/status_reporter.h"

namespace weft {

class Progress {
 public:
  explicit Progress(bool terminal)
      : terminal_(terminal), style_(MessageStyle()), reporter_(StatusReporter::FromEnvironment()) {}

  // Shows the state. `now` in seconds of any clock. Draws at most four times a second, or says a line at most
  // every ten seconds, and each time that the run waits for something else.
  void Show(double now, const ProgressState& state);
  // Removes the renewing lines, so that other messages begin on a clean line.
  void Clear();

 private:
  struct Seen {
    double now;
    int steps_done;
  };
  double StepsPerSecond() const;
  std::string Headline(const ProgressState& state) const;
  std::string RankLine(const RankReport& report);
  void Draw(const std::vector<std::string>& lines);

  const bool terminal_;
  const TextStyle style_;
  const std::unique_ptr<StatusReporter> reporter_;  // null outside of Kubeflow
  double last_shown_ = -1e9;                        // below 0: not yet
  std::string last_line_, last_awaited_;
  int drawn_lines_ = 0;
  std::deque<Seen> seen_;  // of the last ten seconds or so
  // A rank's report before the latest one and the latest: what happened between them is what is shown.
  std::map<Rank, std::pair<RankReport, RankReport>> reports_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_CONSOLE_PROGRESS_H_
