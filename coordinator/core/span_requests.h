// Asks the processes of a run for their last idle times and transfers, for somebody who wants to see its
// trace.
//
// Each request is answered once: when every process that was asked has told, is gone, or has had its time. A
// run is not held up by a process that does not tell; its trace then lacks what that would have said.
//
// Pure, as the core that owns it (coordinator_core.h). Memory: per request, a number for each process asked.
#ifndef WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_
#define WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_

#include <cstdint>
#include <set>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/core/step_effects.h"

namespace weft {

class SpanRequests {
 public:
  // Time that a process has to tell.
  static constexpr int64_t kPatienceNs = 5'000'000'000;

  // Asks the sessions, for the run. Answers at once if there are none.
  void Ask(StepEffects& out, const AskSpans& request, const std::vector<SessionId>& sessions);
  // Notes that the session has told the spans of the run.
  void Told(StepEffects& out, SessionId session, uint64_t run);
  // Notes that the session is over.
  void Gone(StepEffects& out, SessionId session);
  // Answers the requests whose time is over.
  void CheckDeadline(StepEffects& out);
  // Returns when CheckDeadline has something to do; INT64_MAX for never.
  int64_t next_due() const;

 private:
  struct Request {
    AskSpans request;
    std::set<SessionId> awaited;
    int64_t due = 0;
  };
  void AnswerComplete(StepEffects& out);

  std::vector<Request> requests_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_
