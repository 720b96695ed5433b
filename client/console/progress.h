// Shows the progress of a training to whoever watches: a few lines that renew themselves on a terminal, a
// plain line now and then elsewhere. On standard error only.
//
// Not thread-safe.
#ifndef WEFT_CLIENT_CONSOLE_PROGRESS_H_
#define WEFT_CLIENT_CONSOLE_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "client/console/console.h"
#include "proto/session/messages.h"

namespace weft {

struct ProgressState {
  std::string name;
  // The phase of a run while no step ends: "waiting for 2 worker processes"; "" for none.
  std::string phase;
  int steps = 0, steps_done = 0;
  double loss = 0;
  bool has_loss = false;
  std::vector<RankReport> reports;  // totals, as they come
  int first_step = 0;               // those before it are done from the start
  std::string validated = {};       // of the last validation, if any: "validation 1.4230"
  std::string trouble = {};         // why a running run does not get on; "" while it does
  // The reason why the run has not started yet. Elsewhere than on a terminal it is printed at once, and once.
  std::string awaited = {};
};

// Returns "validation 1.4230".
std::string ValidationText(const Validation& validation);

class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal), style_(MessageStyle()) {}

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
  double last_shown_ = -1e9;  // below 0: not yet
  std::string last_line_, last_awaited_;
  int drawn_lines_ = 0;
  std::deque<Seen> seen_;  // of the last ten seconds or so
  // A rank's report before the latest one and the latest: what happened between them is what is shown.
  std::map<Rank, std::pair<RankReport, RankReport>> reports_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_CONSOLE_PROGRESS_H_
