// Keeps the runs that wait for worker processes, in the order of their queue.
//
// A queue may be long, and most of what happens changes little of it: one run joins it, or its first one
// starts. So runs lie in an order that holds without being sorted: those that have begun before by number;
// the others by pool, by priority, by owner, by number. The next owner depends on what the owners' runs have
// at that time, so the caller is asked. Runs that need more processes than their pool has connected lie
// apart, by that number: they hold back no other run.
//
// Invariants: each run is here once; dues() has the deadline of each, as of its last Add.
// The finding of a run, and its joining and leaving, take a time that grows with the logarithm of their
// number. Refers to the runs, which outlive their stay. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_WAITING_RUNS_H_
#define WEFT_COORDINATOR_CORE_WAITING_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/run.h"
#include "coordinator/core/run_dues.h"

namespace weft {

class WaitingRuns {
 public:
  using Runs = std::map<uint64_t, Run*>;
  // The processes that serve each owner's runs; an owner who is not there has none.
  using Processes = std::map<std::string, int64_t>;

  // The runs of one pool that have not begun before.
  class Line {
   public:
    // Returns the first runs in their order, of those for which enough workers are connected.
    std::vector<Run*> First(size_t most, const Processes& processes) const;
    // Returns runs that need more workers than are connected, those that need the fewest first.
    std::vector<Run*> FirstOfLarge(size_t most) const;
    bool empty() const { return turns_.empty() && large_.empty(); }
    // Notes the runs that get the exact reason why they wait. Returns the others that must get a shorter
    // reason: they have joined the line, changed sides in it, or had the exact reason before.
    std::vector<Run*> SetNear(const std::vector<Run*>& near);

   private:
    friend class WaitingRuns;
    void Add(Run* run);
    void Remove(const Run& run);
    void SetConnected(int32_t connected);

    // Runs by priority, the highest first, then by owner.
    std::map<int32_t, std::map<std::string, Runs>, std::greater<>> turns_;
    std::map<int32_t, Runs> large_;  // by the number of processes
    int32_t connected_ = 0;
    Runs near_;    // told exactly
    Runs untold_;  // those that have joined the line or changed sides since the last SetNear
  };

  // Takes a run in, or notes that its deadline has changed.
  void Add(Run* run);
  // Lets a run go, which may not be here.
  void Remove(const Run& run);
  // Notes how many workers of the pool are connected.
  void SetConnected(const std::string& pool, size_t connected);

  size_t size() const { return dues_.size(); }
  // Returns the runs that have begun before, by number.
  const Runs& begun() const { return begun_; }
  std::map<std::string, Line>& lines() { return lines_; }
  // Returns true if a run waits for workers of the pool.
  bool WaitsFor(const std::string& pool) const;
  const RunDues& dues() const { return dues_; }

 private:
  static bool HasBegun(const Run& run);

  Runs begun_;
  std::map<std::string, Line> lines_;  // by pool; none is empty
  std::map<std::string, int32_t> connected_;
  RunDues dues_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WAITING_RUNS_H_
