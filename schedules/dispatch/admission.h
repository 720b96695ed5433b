// Admits forwards by bytes: decides which forwards of a rank have room for their activations, whatever the
// durations.
//
// A rank hands out tickets for its forwards in the order of step, micro-batch, stage (of a fixed order: as it
// lists them), each only if the tickets that are out and this one fit the rank's budget together. A forward
// starts only with its ticket, in whatever order the dispatch chooses among those that have theirs; the
// ticket comes back when the micro-batch's backward on the stage has ended. Where the backward hands out the
// gradient of the weights, the ticket has room for that too, and this part of it comes back when all ranks
// that sum the gradient have taken it. So neither the activations of forwards nor the gradients that wait
// exceed the budget.
//
// Why it cannot deadlock. The claim order is that of a nominal run under the same budgets, which
// CheckSchedule has seen to end. Take its first job, over all ranks, that has not ended. Every ticket of its
// rank that had come back when it started in the nominal run comes back now too: the backwards that bring
// them come before it in the claim order, and a gradient is taken when those of earlier micro-batches have
// been made (gradient_turns.h), whose backwards do so as well. Tickets go out in one order and cost no
// more than planned, so if the job is a forward it gets its ticket. (Whatever runs ahead of the nominal order
// does so with tickets that do not stand in its way.) The nominal run ends because the oldest micro-batch
// holds its tickets on every rank as soon as one micro-batch fits, unless order edges or fixed orders want a
// younger one first: then the nominal run is stuck, and the schedule is refused. Pure. Not thread-safe.
#ifndef WEFT_SCHEDULES_DISPATCH_ADMISSION_H_
#define WEFT_SCHEDULES_DISPATCH_ADMISSION_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "schedules/graph/graph.h"
#include "schedules/job.h"
#include "schedules/run_terms.h"

namespace weft {

// The tickets of one rank.
class Tickets {
 public:
  // `stages`: stages of the rank's forwards, in ticket order, for one period of steps, then over again.
  // `activation_bytes`: bytes of activations that a forward leaves, by stage.
  // `gradient_bytes`: bytes by stage of the gradient that its backward hands out; empty for none.
  // `next`: the first ticket to be handed out.
  Tickets(int64_t budget, std::vector<int32_t> stages, std::vector<int64_t> activation_bytes,
          std::vector<int64_t> gradient_bytes = {}, int64_t next = 0);

  // Returns true if the forward has its ticket; those before it in the order get theirs first.
  bool Reach(int64_t ticket);
  // Takes back what the ticket of a micro-batch has for its activations: its backward has ended. What it has
  // for a gradient that the backward handed out stays out until ReturnGradient.
  void Return(int stage);
  void ReturnGradient(int stage) { bytes_out_ -= gradient_bytes_[stage]; }
  bool HandsOut(int stage) const { return gradient_bytes_[stage] > 0; }
  // Sets the bytes that a forward of the stage leaves: not more than was planned (the proof above).
  void Measure(int stage, int64_t bytes);

  int64_t budget() const { return budget_; }
  int64_t bytes_out() const { return bytes_out_; }
  // Returns the bytes of a ticket of the stage.
  int64_t BytesOf(int stage) const { return std::max(activation_bytes_[stage], gradient_bytes_[stage]); }

 private:
  int64_t budget_;
  std::vector<int32_t> stages_;
  std::vector<int64_t> activation_bytes_, gradient_bytes_;  // by stage
  std::vector<int64_t> out_;                                // tickets that are out for activations, by stage
  int64_t bytes_out_ = 0;
  int64_t next_;  // ticket
};

// The order in which every rank hands out its tickets.
class AdmissionOrder {
 public:
  // Takes the run's own memory, or another.
  explicit AdmissionOrder(const Graph& graph) : AdmissionOrder(graph, graph.terms().memory) {}
  AdmissionOrder(const Graph& graph, std::optional<ActivationMemory> memory);

  // Returns the forward's ticket; -1 without a budget.
  int64_t TicketOf(const Job& forward) const;
  // Returns the tickets of the rank's forwards from this step on; nothing without a budget.
  std::optional<Tickets> TicketsOf(Rank rank, int first_step = 0) const;
  // Return true if tickets have room for gradients that leave their rank, of any stage and of this one.
  bool has_gradients() const { return !gradient_bytes_.empty(); }
  bool HandsOut(int stage) const { return has_gradients() && gradient_bytes_[stage] > 0; }

 private:
  std::optional<ActivationMemory> memory_;
  std::vector<int64_t> gradient_bytes_;  // by stage, of gradients that leave; empty if none does
  int period_, microbatches_;
  std::vector<std::vector<int32_t>> stages_;  // by rank, of a period
  struct Place {
    Rank rank;
    int32_t number;
  };
  std::vector<std::vector<Place>> places_;  // [step mod period][stage * B + micro-batch]
};

// Checks that one micro-batch fits its ranks. InvalidArgument, naming rank, micro-batch,
// stage and bytes, if they do not.
absl::Status CheckMemory(const RunSchedule& schedule);

}  // namespace weft

#endif  // WEFT_SCHEDULES_DISPATCH_ADMISSION_H_
