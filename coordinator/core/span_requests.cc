#include "coordinator/core/span_requests.h"

#include <algorithm>
#include <utility>

namespace weft {

void SpanRequests::Ask(StepEffects& out, const AskSpans& request, const std::vector<SessionId>& sessions) {
  Add(out, {request.run, request.reply, {sessions.begin(), sessions.end()}, out.now + kPatienceNs});
}

void SpanRequests::AskLast(StepEffects& out, uint64_t run, const std::vector<SessionId>& sessions) {
  Add(out, {run, {}, {sessions.begin(), sessions.end()}, out.now + kLastPatienceNs});
}

void SpanRequests::Add(StepEffects& out, Request request) {
  for (const SessionId session : request.awaited) out.Send(session, TellSpans{request.run});
  requests_.push_back(std::move(request));
  AnswerComplete(out);
}

void SpanRequests::Told(StepEffects& out, SessionId session, uint64_t run) {
  for (Request& r : requests_) {
    if (r.run == run) r.awaited.erase(session);
  }
  AnswerComplete(out);
}

void SpanRequests::Gone(StepEffects& out, SessionId session) {
  for (Request& r : requests_) r.awaited.erase(session);
  AnswerComplete(out);
}

void SpanRequests::CheckDeadline(StepEffects& out) {
  for (Request& r : requests_) {
    if (r.due <= out.now) r.awaited.clear();
  }
  AnswerComplete(out);
}

int64_t SpanRequests::next_due() const {
  int64_t next = INT64_MAX;
  for (const Request& r : requests_) next = std::min(next, r.due);
  return next;
}

void SpanRequests::AnswerComplete(StepEffects& out) {
  const auto complete = std::stable_partition(requests_.begin(), requests_.end(),
                                              [](const Request& r) { return !r.awaited.empty(); });
  for (auto it = complete; it != requests_.end(); ++it) {
    if (it->reply.has_value()) {
      out.effects.replies.push_back({*it->reply, absl::OkStatus(), it->run});
    } else {
      out.effects.spans_complete.push_back(it->run);
    }
  }
  requests_.erase(complete, requests_.end());
}

}  // namespace weft
