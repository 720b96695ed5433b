// Holds what the run API says of a run that does not get on: what each rank does or waits for, and the root
// of each chain of waits (docs/design/waits.md). Pure.
#ifndef WEFT_PROTO_SESSION_RUN_WAITS_H_
#define WEFT_PROTO_SESSION_RUN_WAITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/session/run_info.h"
#include "schedules/job.h"

namespace weft {

// Returns "F s2 m3 t17" for the forward of stage 2 and micro-batch 3 in step 17. B is a backward, I and W are
// its halves for input and weights, R is a reduce and U an update; the last two have no micro-batch.
std::string JobName(const Job& job);

// An input of a job that its rank has not got, and the job that makes it.
struct MissingInput {
  TensorKind tensor = TensorKind::kOrder;
  Job maker;
  Rank rank = 0;  // rank of that job
  friend bool operator==(const MissingInput&, const MissingInput&) = default;
};

inline constexpr int kMostOfChain = 64;

struct RankWait {
  Rank rank = 0;
  int32_t process = 0;  // number of the rank's process
  // computes, begins (a job that it can compute, and is in no report yet), collective (it has begun one),
  // waits, silent (its process), broken (the session of its process), or done (it has no job left).
  std::string does;
  std::optional<Job> job;  // job that it computes, is in, or waits to start
  int64_t for_ns = 0;      // how long it has done so
  std::optional<MissingInput> missing;
  int32_t further = 0;           // number of further inputs that the job waits for
  int32_t root = -1;             // index of the root of its wait; -1 for a rank that does not wait
  std::vector<Rank> chain = {};  // first kMostOfChain ranks behind it in its chain of waits, each once
  friend bool operator==(const RankWait&, const RankWait&) = default;
};

// The end of a chain of waits.
struct WaitRoot {
  // job (that runs), collective, silent, broken, link, transfer, limit (of activations), memory, checkpoint,
  // credit, or unknown.
  std::string kind;
  Rank rank = -1;  // -1 where it belongs to a whole process
  int32_t process = 0;
  std::optional<Job> job;
  int64_t for_ns = 0;
  std::string sentence;  // about all of this
  friend bool operator==(const WaitRoot&, const WaitRoot&) = default;
};

struct RunWaits {
  uint64_t run = 0;
  std::string name;
  RunState state = RunState::kSubmitted;
  // Sentence that says why it does not run, or why a run that runs stops or began again; "" for none.
  std::string reason;
  int64_t still_ns = -1;  // time since one of its jobs ended, or since it began to run; -1 unless it runs
  std::vector<WaitRoot> roots;
  std::vector<RankWait> ranks;  // by rank; of a run that runs
  friend bool operator==(const RunWaits&, const RunWaits&) = default;
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_RUN_WAITS_H_
