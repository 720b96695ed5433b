// Keeps the times at which runs are due, by run, and the earliest of all.
//
// Setting and removing one takes a time that grows with the logarithm of their number. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_DUES_H_
#define WEFT_COORDINATOR_CORE_RUN_DUES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "proto/session/link_clock.h"

namespace weft {

class RunDues {
 public:
  // Sets the time of a run; kNever for one that is never due. Returns true if the run is new here.
  bool Set(uint64_t run, int64_t due) {
    const auto [known, added] = due_of_.emplace(run, kNever);
    if (known->second == due) return added;
    dues_.erase({known->second, run});
    if (due != kNever) dues_.emplace(due, run);
    known->second = due;
    return added;
  }
  // Removes a run. Returns true if it was here.
  bool Remove(uint64_t run) {
    const auto known = due_of_.find(run);
    if (known == due_of_.end()) return false;
    dues_.erase({known->second, run});
    due_of_.erase(known);
    return true;
  }

  size_t size() const { return due_of_.size(); }
  int64_t earliest() const { return dues_.empty() ? kNever : dues_.begin()->first; }
  // Returns the runs that are due by now, the earliest first.
  std::vector<uint64_t> By(int64_t now) const {
    std::vector<uint64_t> due;
    for (auto it = dues_.begin(); it != dues_.end() && it->first <= now; ++it) due.push_back(it->second);
    return due;
  }

 private:
  std::map<uint64_t, int64_t> due_of_;
  std::set<std::pair<int64_t, uint64_t>> dues_;  // without kNever
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_DUES_H_
