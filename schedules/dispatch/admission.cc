#include "schedules/dispatch/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"

namespace weft {
namespace {

// Returns the room that a forward of the stage needs, in words.
std::string RoomInWords(const ActivationMemory& memory, int stage) {
  const auto bytes = [](int64_t number) { return FormatBytes(static_cast<double>(number)); };
  if (memory.GradientOf(stage) > memory.BytesOf(stage)) {
    return absl::StrFormat("%s by the gradient of the weights of stage %d, until other ranks have taken it",
                           bytes(memory.GradientOf(stage)), stage);
  }
  const int64_t received = memory.ReceivedOf(stage);
  const std::string of_received =
      received > 0 ? absl::StrCat(", and ", bytes(received), " received from other ranks for it") : "";
  return absl::StrFormat("%s by stage %d%s", bytes(memory.activation_bytes[stage]), stage, of_received);
}

}  // namespace

Tickets::Tickets(int64_t budget, std::vector<int32_t> stages, std::vector<int64_t> activation_bytes,
                 std::vector<int64_t> gradient_bytes, int64_t next)
    : budget_(budget),
      stages_(std::move(stages)),
      activation_bytes_(std::move(activation_bytes)),
      gradient_bytes_(std::move(gradient_bytes)),
      out_(activation_bytes_.size(), 0),
      next_(next) {
  gradient_bytes_.resize(activation_bytes_.size(), 0);
}

// On demand: a large budget must not be handed out at once.
bool Tickets::Reach(int64_t ticket) {
  while (next_ <= ticket) {
    const int stage = stages_[static_cast<size_t>(next_ % static_cast<int64_t>(stages_.size()))];
    if (bytes_out_ + BytesOf(stage) > budget_) return false;
    bytes_out_ += BytesOf(stage);
    ++out_[stage];
    ++next_;
  }
  return true;
}

void Tickets::Return(int stage) {
  --out_[stage];
  bytes_out_ -= BytesOf(stage) - gradient_bytes_[stage];
}

void Tickets::Measure(int stage, int64_t bytes) {
  const int64_t before = BytesOf(stage);
  activation_bytes_[stage] = bytes;
  bytes_out_ += out_[stage] * (BytesOf(stage) - before);
}

AdmissionOrder::AdmissionOrder(const Graph& graph, std::optional<ActivationMemory> memory)
    : memory_(std::move(memory)),
      period_(graph.schedule().period),
      microbatches_(graph.schedule().microbatches) {
  if (!memory_.has_value()) return;
  const Schedule& s = graph.schedule();
  for (int stage = 0; stage < s.stages; ++stage) {
    const int64_t bytes = graph.protocol(stage).gradients_leave() ? memory_->GradientOf(stage) : 0;
    if (bytes == 0) continue;
    gradient_bytes_.resize(s.stages, 0);
    gradient_bytes_[stage] = bytes;
  }
  stages_.resize(s.ranks);
  places_.resize(period_, std::vector<Place>(static_cast<size_t>(s.stages) * s.microbatches));
  const auto append = [&](const Job& forward, Rank rank) {
    places_[forward.step][static_cast<size_t>(forward.stage) * microbatches_ + forward.microbatch] = {
        rank, static_cast<int32_t>(stages_[rank].size())};
    stages_[rank].push_back(forward.stage);
  };
  for (Rank rank = 0; rank < static_cast<Rank>(s.order.size()); ++rank) {
    for (const Job& job : s.order[rank]) {
      if (job.kind == JobKind::kForward) append(job, rank);
    }
  }
  if (!s.order.empty()) return;
  for (int step = 0; step < period_; ++step) {
    for (int b = 0; b < s.microbatches; ++b) {
      for (int stage = 0; stage < s.stages; ++stage) {
        const Job forward = Job::Compute(step, stage, b, JobKind::kForward);
        append(forward, s.compute(forward));
      }
    }
  }
}

int64_t AdmissionOrder::TicketOf(const Job& forward) const {
  if (!memory_.has_value()) return -1;
  const Place& place = places_[forward.step % period_]
                              [static_cast<size_t>(forward.stage) * microbatches_ + forward.microbatch];
  return forward.step / period_ * static_cast<int64_t>(stages_[place.rank].size()) + place.number;
}

std::optional<Tickets> AdmissionOrder::TicketsOf(Rank rank, int first_step) const {
  if (!memory_.has_value()) return std::nullopt;
  int64_t next = first_step / period_ * static_cast<int64_t>(stages_[rank].size());
  for (int step = 0; step < first_step % period_; ++step) {
    for (const Place& place : places_[step]) next += place.rank == rank;
  }
  std::vector<int64_t> bytes;
  for (size_t s = 0; s < memory_->activation_bytes.size(); ++s)
    bytes.push_back(memory_->BytesOf(static_cast<int>(s)));
  return Tickets(memory_->budget[rank], stages_[rank], std::move(bytes), gradient_bytes_, next);
}

absl::Status CheckMemory(const RunSchedule& schedule) {
  if (!schedule.terms.memory.has_value()) return absl::OkStatus();
  const Schedule& s = schedule.scheme;
  const ActivationMemory& memory = *schedule.terms.memory;
  const auto bytes = [](int64_t number) { return FormatBytes(static_cast<double>(number)); };
  if (static_cast<int>(memory.budget.size()) != s.ranks ||
      static_cast<int>(memory.activation_bytes.size()) != s.stages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the memory of activations is given for %d ranks and %d stages; the schedule has %d and %d",
        memory.budget.size(), memory.activation_bytes.size(), s.ranks, s.stages));
  }
  for (int step = 0; step < s.period; ++step) {
    for (int b = 0; b < s.microbatches; ++b) {
      std::vector<int64_t> sum(s.ranks, 0);
      for (int stage = 0; stage < s.stages; ++stage) {
        const Job forward = Job::Compute(step, stage, b, JobKind::kForward);
        const Rank rank = s.compute(forward);
        const JobKind backward = s.split_backward ? JobKind::kBackwardInput : JobKind::kBackward;
        if (s.compute(Job::Compute(step, stage, b, backward)) != rank) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s and its backward are on different ranks; a memory budget needs them on one",
                              Describe(forward)));
        }
        sum[rank] += memory.RoomOf(stage);
        if (sum[rank] <= memory.budget[rank]) continue;
        const bool of_gradient = memory.GradientOf(stage) > memory.BytesOf(stage);
        return absl::InvalidArgumentError(absl::StrFormat(
            "rank %d has %s for activations%s, and micro-batch %d alone leaves %s there, of them %s; give it "
            "more memory%s",
            rank, bytes(memory.budget[rank]), of_gradient ? " and gradients" : "", b, bytes(sum[rank]),
            RoomInWords(memory, stage),
            of_gradient ? "" : ", or take smaller micro-batches or activations: recompute"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
