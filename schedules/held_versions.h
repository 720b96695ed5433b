// The versions of one stage's weights that one holder keeps: the newest, and older ones until their last
// reader ended. Pure; the simulator counts with it.
#ifndef WEFT_SCHEDULES_HELD_VERSIONS_H_
#define WEFT_SCHEDULES_HELD_VERSIONS_H_

#include <deque>

namespace weft {

class HeldVersions {
 public:
  void Start(int readers_of_first) { readers_ = {readers_of_first}; }
  int Count() const {
    int n = 0;
    for (int v = oldest_; v < newest_; ++v) n += ReadersLeft(v) > 0;
    return n + 1;
  }
  void Read(int version) { --readers_[version - oldest_]; }
  // `readers`: jobs that will read the version after the newest one that is known to have readers.
  void Add(int readers) { readers_.push_back(readers); }
  void Publish() {
    ++newest_;
    while (oldest_ < newest_ && ReadersLeft(oldest_) == 0) {
      readers_.pop_front();
      ++oldest_;
    }
  }

 private:
  int ReadersLeft(int version) const { return readers_[version - oldest_]; }
  std::deque<int> readers_;
  int oldest_ = 0, newest_ = 0;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_HELD_VERSIONS_H_
