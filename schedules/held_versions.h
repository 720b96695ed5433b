// Which versions of their weights the holders of each stage keep at a time: the newest, and older ones until
// their last reader has ended. Pure; the simulator counts with it.
#ifndef WEFT_SCHEDULES_HELD_VERSIONS_H_
#define WEFT_SCHEDULES_HELD_VERSIONS_H_

#include <deque>
#include <vector>

#include "schedules/graph.h"

namespace weft {

class HeldVersions {
 public:
  // Refers to `graph`. Every member of every stage holds version 0.
  HeldVersions(const Graph& graph, int steps);

  // A compute job has ended: it needs its version no more.
  void Read(const Job& job);
  // An update has ended. Returns how many versions its member holds now.
  int Publish(const Job& update);

 private:
  struct Member {
    std::deque<int> readers;  // that are left of each version from `oldest` on
    int oldest = 0, newest = 0;
  };

  int ReadersOf(int stage, int member, int version) const;

  const Graph& graph_;
  const int steps_;
  std::vector<std::vector<Member>> members_;  // by stage
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_HELD_VERSIONS_H_
