#include "worker/shell/session_notes.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace weft {

std::string SessionNotes::OnReceived(const FromCoordinator& message) {
  if (const auto* m = std::get_if<Welcome>(&message)) {
    process_ = m->process;
    return absl::StrCat("joined as process ", m->process);
  }
  if (const auto* m = std::get_if<Assign>(&message)) {
    run_ = m->run;
    return absl::StrCat("run ", m->run, " begins: ", m->leases.size(), " of its ", m->process_of_rank.size(),
                        " ranks here, ", m->peers.size(), " processes in all");
  }
  if (const auto* m = std::get_if<Finish>(&message))
    return absl::StrCat("run ", m->run, ": all jobs are done");
  if (const auto* m = std::get_if<Abort>(&message)) {
    if (run_ == m->run) run_ = 0;
    return absl::StrCat("run ", m->run, " was ended: ", m->reason);
  }
  if (const auto* m = std::get_if<Shutdown>(&message)) {
    shutdown_ = m->reason;
    return m->reason.empty() ? "it leaves" : absl::StrCat("the coordinator ends: ", m->reason);
  }
  return "";
}

std::string SessionNotes::OnSent(const FromWorker& message) {
  if (const auto* m = std::get_if<Reattach>(&message)) {
    run_ = m->run;
    return run_ == 0 ? ""
                     : absl::StrCat("run ", run_, " goes on here: steps before ", m->ended,
                                    " are known to have ended");
  }
  if (const auto* m = std::get_if<Failed>(&message)) {
    if (run_ == m->run) run_ = 0;
    return absl::StrCat("run ", m->run, " fails here: ", m->reason);
  }
  if (const auto* m = std::get_if<Finished>(&message)) {
    if (run_ == m->run) run_ = 0;
    return absl::StrCat("run ", m->run, " is finished");
  }
  return "";
}

}  // namespace weft
