#include "proto/session/message_times.h"

#include <variant>
#include <vector>

namespace weft {
namespace {

void Move(int64_t ns, std::vector<IdleSpan>* spans) {
  for (IdleSpan& span : *spans) {
    span.start_ns += ns;
    span.end_ns += ns;
  }
}

void Move(int64_t ns, std::vector<TransferSpan>* spans) {
  for (TransferSpan& span : *spans) {
    span.wanted_ns += ns;
    if (span.made_ns != 0) span.made_ns += ns;
    span.arrived_ns += ns;
  }
}

void Move(int64_t ns, std::vector<RankReport>* reports) {
  for (RankReport& report : *reports) {
    Move(ns, &report.idle_spans);
    Move(ns, &report.transfer_spans);
  }
}

}  // namespace

void MoveTimes(int64_t ns, FromWorker* message) {
  if (auto* ended = std::get_if<Completions>(message)) {
    for (Completion& job : ended->jobs) {
      job.start_ns += ns;
      job.end_ns += ns;
    }
  } else if (auto* spans = std::get_if<Spans>(message)) {
    for (Spans::OfRank& of_rank : spans->ranks) {
      Move(ns, &of_rank.idle);
      Move(ns, &of_rank.transfers);
    }
  } else if (auto* report = std::get_if<Report>(message)) {
    Move(ns, &report->ranks);
  } else if (auto* finished = std::get_if<Finished>(message)) {
    Move(ns, &finished->ranks);
  }
}

}  // namespace weft
