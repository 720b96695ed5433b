// Decides which thread polls a session's completion queue: the session's own, or a caller that asks for
// messages again and again.
//
// A message that the own thread takes in wakes the caller, which costs as much as the round trip itself. A
// caller that spins polls the queue itself instead. It gets the turn when it has asked in vain for kVain, so
// that callers who soon block never do. It keeps the turn while it asks at least every kGone, also with a
// short job in between, and gives it back when it is about to block.
//
// Invariant: at most one thread polls. Not thread-safe: the owner's lock guards it. Nothing here fails.
#ifndef WEFT_PROTO_SESSION_POLL_TURN_H_
#define WEFT_PROTO_SESSION_POLL_TURN_H_

#include <cstdint>

namespace weft {

class PollTurn {
 public:
  static constexpr int64_t kVain = 25'000;
  static constexpr int64_t kGone = 2'000'000;
  // Time between two polls of a caller, which has other things to look at as well.
  static constexpr int64_t kPause = 2'000;

  // Notes that a caller asked at `now` and nothing had arrived. Returns true if it is to poll the queue,
  // once; call Return after that.
  bool TakeForCaller(int64_t now) {
    if (now - asked_ns_ > kGone) Rest();
    asked_ns_ = now;
    if (vain_since_ == kNever) vain_since_ = now;
    wanted_ = wanted_ || now - vain_since_ >= kVain;
    if (!wanted_ || poller_ != Poller::kNobody || now < next_poll_) return false;
    poller_ = Poller::kCaller;
    next_poll_ = now + kPause;
    return true;
  }

  // Notes that a caller asked at `now` and something had arrived.
  void NoteArrived(int64_t now) {
    asked_ns_ = now;
    vain_since_ = kNever;
  }

  // Returns true if the own thread polls and a caller waits for its turn.
  bool own_is_in_the_way() const { return wanted_ && poller_ == Poller::kOwn; }

  // Lets the own thread poll, and returns 0: call Return after that. Else returns how long to wait before
  // asking again, in ns.
  int64_t TakeForOwn(int64_t now) {
    if (poller_ == Poller::kCaller) return kGone;
    if (wanted_ && now - asked_ns_ < kGone) return kGone - (now - asked_ns_);
    Rest();
    poller_ = Poller::kOwn;
    return 0;
  }

  // Notes that the thread that had the turn does not poll any more.
  void Return() { poller_ = Poller::kNobody; }

  // Takes the turn from callers until one spins again. Returns true if the own thread may wait for it.
  bool Rest() {
    vain_since_ = kNever;
    const bool wanted = wanted_;
    wanted_ = false;
    return wanted;
  }

  bool caller_polls() const { return poller_ == Poller::kCaller; }

 private:
  enum class Poller { kNobody, kOwn, kCaller };
  static constexpr int64_t kNever = -1;

  Poller poller_ = Poller::kNobody;
  bool wanted_ = false;          // a caller spins, and has the turn or is to get it
  int64_t asked_ns_ = 0;         // when a caller asked last
  int64_t vain_since_ = kNever;  // since when a caller has asked in vain
  int64_t next_poll_ = 0;
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_POLL_TURN_H_
