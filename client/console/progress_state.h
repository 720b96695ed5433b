// Says how far a training is, as a value that is shown and reported.
#ifndef WEFT_CLIENT_CONSOLE_PROGRESS_STATE_H_
#define WEFT_CLIENT_CONSOLE_PROGRESS_STATE_H_

#include <optional>
#include <string>
#include <vector>

#include "proto/session/messages.h"

namespace weft {

struct ProgressState {
  std::string name;
  // The phase of a run while no step ends: "waiting for 2 worker processes"; "" for none.
  std::string phase;
  int steps = 0, steps_done = 0;
  double loss = 0;
  bool has_loss = false;
  std::vector<RankReport> reports;            // totals, as they come
  int first_step = 0;                         // those before it are done from the start
  std::optional<Validation> validation = {};  // the last one
  std::string trouble = {};                   // why a running run does not get on; "" while it does
  // The reason why the run has not started yet. Elsewhere than on a terminal it is printed at once, and once.
  std::string awaited = {};
};

}  // namespace weft

#endif  // WEFT_CLIENT_CONSOLE_PROGRESS_STATE_H_
