// Keeps what is to be done on a virtual clock, in the order of its times; of one time, in the order in which
// it was added.
#ifndef WEFT_TESTS_SIMULATION_TIMED_ACTIONS_H_
#define WEFT_TESTS_SIMULATION_TIMED_ACTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace weft {

class TimedActions {
 public:
  using Action = std::function<void()>;

  void Add(int64_t time, Action action) { actions_.emplace(time, std::move(action)); }
  bool empty() const { return actions_.empty(); }
  // Takes the first one out, with its time. Requires that there is one.
  std::pair<int64_t, Action> Take() {
    auto first = actions_.extract(actions_.begin());
    return {first.key(), std::move(first.mapped())};
  }

 private:
  std::multimap<int64_t, Action> actions_;  // a multimap keeps equal keys in the order of insertion
};

}  // namespace weft

#endif  // WEFT_TESTS_SIMULATION_TIMED_ACTIONS_H_
