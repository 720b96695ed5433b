// Notices that messages do not arrive any more although there are some.
//
// Processes of one machine write their messages into one queue of shared memory for each receiver. A process
// that is killed in the middle of that leaves an entry which is never whole, and nothing behind it, of any
// process, is ever read. UCX says for ever then that there is something to do, and finds nothing. Nobody else
// can tell: to its peers the receiver looks as if it answered nothing.
//
// A stopped process does the same, for as long as it is stopped. So a time without an end of a process counts
// only once nobody can be waiting for it any more.
//
// Pure: no I/O, no clock, no threads. Times in nanoseconds of any clock.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_WATCH_H_
#define WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_WATCH_H_

#include <cstdint>

namespace weft {

class ReceiveWatch {
 public:
  static constexpr int64_t kSecond = 1'000'000'000;
  // Time until the queue counts as stuck, if a process of this machine has ended about when it began, and if
  // none has.
  static constexpr int64_t kAfterAnEnd = 2 * kSecond, kOtherwise = 60 * kSecond;
  // Time before the queue stood still in which the process may have ended: what others had written before it
  // was still read.
  static constexpr int64_t kRead = 30 * kSecond;
  // The least number of looks in vain, since this process may have been stopped itself.
  static constexpr int kLooks = 100;

  // Notes that a message arrived, or that there is nothing to be read. Progress of UCX is no sign of a
  // message: it also looks after its connections now and then.
  void Moves() { looks_ = 0; }
  // Notes a look that found nothing although there is something.
  void LookedInVain(int64_t now) {
    if (looks_ == 0) since_ = now;
    if (looks_ < kLooks) ++looks_;
  }
  // Notes that a process of this machine has ended, or is given up, so that nobody waits for it any more.
  void PeerEnded(int64_t now) {
    ended_ = now;
    any_ended_ = true;
  }
  bool IsStuck(int64_t now) const {
    if (looks_ < kLooks) return false;
    const bool after_an_end = any_ended_ && ended_ >= since_ - kRead;
    return now - since_ >= (after_an_end ? kAfterAnEnd : kOtherwise);
  }

 private:
  int looks_ = 0;      // looks in vain, one after the other
  int64_t since_ = 0;  // time of the first of them
  int64_t ended_ = 0;  // time when the last process ended
  bool any_ended_ = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_RECEIVE_WATCH_H_
