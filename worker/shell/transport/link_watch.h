// Tells a peer that has not computed a tensor yet from one whose data link is dead.
//
// A want waits as long as its producer needs. But a consumer that wants something of a silent peer asks it,
// by a tiny message each second, whether it still hears: a live peer answers at once, whatever it computes.
// So a link without an answer is noticed within seconds, and given up after a time in which an outage may
// heal. Many bytes under way may stand before the answer on a slow link; they lengthen both times.
//
// Silence counts only while this process looks: when it was stopped itself, or found no time to look, that is
// not the peer's silence. Pure: no I/O, no clock, no threads. Peers are named by the sender numbers of their
// transports.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_LINK_WATCH_H_
#define WEFT_WORKER_SHELL_TRANSPORT_LINK_WATCH_H_

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "proto/session/worst_rate.h"

namespace weft {

struct LinkWatchOptions {
  int64_t ask_ns = 1'000'000'000;        // time between two questions
  int64_t notice_ns = 5'000'000'000;     // silence until it is reported
  int64_t timeout_ns = 120'000'000'000;  // silence until the link is given up
  // Least bytes a second of a link under load.
  int64_t notice_rate = 16 << 20, worst_rate = kWorstRate;
};

class LinkWatch {
 public:
  using Options = LinkWatchOptions;
  explicit LinkWatch(const Options& options = {}) : options_(options) {}

  // A peer whose tensors are wanted, and the number of bytes on their way from and to it.
  struct Wanted {
    uint64_t sender = 0;
    uint64_t bytes_under_way = 0;
  };
  struct Verdict {
    std::vector<uint64_t> ask;     // peers to ask
    std::vector<uint64_t> silent;  // peers that have become silent
    // Peers that have answered after that, or of which nothing is wanted any more.
    std::vector<uint64_t> healed;
    std::vector<uint64_t> dead;  // peers to give up
  };

  // Notes a message from the peer.
  void Heard(uint64_t sender);
  // Judges the peers in `wanted`, ascending by sender. Other peers are not watched.
  Verdict Look(int64_t now, const std::vector<Wanted>& wanted);
  void Forget(uint64_t sender) { links_.erase(sender); }

  // Returns true if the link has answered all questions but the last: what is sent on it arrives soon.
  bool Answers(uint64_t sender) const;
  // Returns when to look next; INT64_MAX while nobody is watched.
  int64_t next_look() const;
  // Returns how long the link has been silent; 0 for a link that is not silent.
  int64_t SilenceOf(uint64_t sender) const;
  int silent_links() const;

 private:
  struct Link {
    bool heard = true;       // heard since the last look
    int64_t asked_ns = 0;    // time of the last question; 0: none since it was heard
    int64_t silence_ns = 0;  // silence since the first question without an answer
    bool silent = false;
    bool wanted = false;
  };

  const Options options_;
  absl::btree_map<uint64_t, Link> links_;
  int64_t last_look_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_LINK_WATCH_H_
