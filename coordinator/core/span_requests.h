// Asks the processes of a run for their last idle times and transfers: when a client asks for its trace, and,
// for the trace in its folder, when it ends without having finished.
//
// Each request is answered once: when every process that was asked has answered, is gone, or has had its
// time. Nobody is held up longer by a process that does not tell; the trace then lacks what that would have
// said.
//
// Pure, as the core that owns it (coordinator_core.h). Memory: per request, a number for each process asked.
#ifndef WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_
#define WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/core/step_effects.h"

namespace weft {

class SpanRequests {
 public:
  // Time that a process has to answer, when a client looks at a run that goes on.
  static constexpr int64_t kPatienceNs = 5'000'000'000;
  // Time likewise when the run ends: its folder is in use until then.
  static constexpr int64_t kLastPatienceNs = 1'000'000'000;

  // Asks the sessions, for the run. Answers by a Reply, at once if there are none.
  void Ask(StepEffects& out, const AskSpans& request, const std::vector<SessionId>& sessions);
  // Asks the sessions of a run that ends. Answers by Effects::spans_complete, at once if there are none.
  void AskLast(StepEffects& out, uint64_t run, const std::vector<SessionId>& sessions);
  // Notes that the session has reported the spans of the run, or has forgotten it.
  void Told(StepEffects& out, SessionId session, uint64_t run);
  // Notes that the session is over.
  void Gone(StepEffects& out, SessionId session);
  // Answers the requests whose time is over.
  void CheckDeadline(StepEffects& out);
  // Returns when CheckDeadline has something to do; INT64_MAX for never.
  int64_t next_due() const;

 private:
  struct Request {
    uint64_t run = 0;
    std::optional<uint64_t> reply;  // nothing for a run that ends
    std::set<SessionId> awaited;
    int64_t due = 0;
  };
  void Add(StepEffects& out, Request request);
  void AnswerComplete(StepEffects& out);

  std::vector<Request> requests_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_SPAN_REQUESTS_H_
