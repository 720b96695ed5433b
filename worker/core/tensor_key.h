// Names one tensor on its way from the job that made it to the rank that needs it.
//
// Both sides of a transfer derive the same key from the job graph, so that a consumer can ask for a tensor
// before it exists and no order of sends and receives has to be agreed on. A key never repeats: the epoch
// separates attempts of one run.
//
// OfEdge and OfCopy alone decide what each field holds, which depends on the kind:
//
//   kind     step, microbatch        version                part                         use
//   weights  the reading job's       that of the weights    the slice                    its JobKind
//   state    the making job's        0                      JobKind of the making job    its JobKind
//   order    the making job's        JobKind of that job    number of the reading job    its JobKind
//   copy     that of the state, -1   the step again         the slice                    a CopyUse
//   others   the making job's        0                      Edge::part                   its JobKind
//
// "Its" is the reading job's. Code that takes a key apart asks reader, copied_part or begins_attempt.
#ifndef WEFT_WORKER_CORE_TENSOR_KEY_H_
#define WEFT_WORKER_CORE_TENSOR_KEY_H_

#include <compare>
#include <cstdint>
#include <string>

#include "schedules/job.h"

namespace weft {

class Graph;
struct Edge;       // schedules/graph/edge.h
struct StatePart;  // proto/session/messages.h

struct TensorKey {
  // The purpose of a copy of a state: a second one beside that of its ranks, or one with which the attempt
  // begins.
  enum class CopyUse : uint8_t { kSecond = 0, kBegin = 1 };

  // Returns the key of what travels along an edge of the graph.
  static TensorKey OfEdge(uint64_t run, uint64_t epoch, const Graph& graph, const Edge& edge);
  // Returns the key of a copy of a part of the step's state, for another process. `producer` and `consumer`
  // are the first ranks of both.
  static TensorKey OfCopy(uint64_t run, uint64_t epoch, int32_t step, const StatePart& part, Rank producer,
                          Rank consumer, CopyUse use);

  // Returns the kind of the job that reads the tensor. Requires that it is of an edge.
  JobKind reader() const { return static_cast<JobKind>(use); }
  // Return what a copy is of, and whether the attempt begins with it. Require a copy.
  StatePart copied_part() const;
  bool begins_attempt() const { return static_cast<CopyUse>(use) == CopyUse::kBegin; }

  uint64_t run = 0;
  uint64_t epoch = 0;
  int32_t step = 0;
  int32_t stage = 0;        // stage of the job that made it
  int32_t microbatch = -1;  // -1: not of one micro-batch
  int32_t version = 0;
  int32_t part = 0;
  Rank producer = 0;
  Rank consumer = 0;
  TensorKind kind = TensorKind::kActivation;
  uint8_t use = 0;

  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const TensorKey& k) {
    return H::combine(std::move(h), k.run, k.epoch, k.step, k.stage, k.microbatch, k.version, k.part,
                      k.producer, k.consumer, k.kind, k.use);
  }
};

// Returns "activation of step 3, stage 1, micro-batch 5 for rank 2": for messages to people.
std::string Describe(const TensorKey& key);

}  // namespace weft

#endif  // WEFT_WORKER_CORE_TENSOR_KEY_H_
