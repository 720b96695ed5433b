// Watches the data links on which a tensor is awaited: asks peers that are silent, says of which nothing is
// heard, and gives up links that carry nothing any more.
//
// LinkWatch (link_watch.h) judges the silence. This class tells it which links to look at, and makes
// sentences of its verdicts, with the tensor that is awaited and the path that it would take. A process and a
// peer have one link to each other in their lives: one that is lost stays lost (`lost`).
//
// Not thread-safe. Ownership: borrows what it is made from. No failures.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_AWAITED_LINKS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_AWAITED_LINKS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/shell/transport/link_watch.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/transfer_table.h"

namespace weft {

class AwaitedLinks {
 public:
  struct Options {
    LinkWatchOptions watch;
    std::function<void(const std::string& line)> log;  // may be null
    // Returns the bytes on their way from the peer and to its process.
    std::function<uint64_t(PeerId peer, uint64_t sender)> bytes_under_way;
  };
  struct Verdict {
    std::vector<uint64_t> ask;                           // senders to ask whether they hear
    std::vector<uint64_t> answer;                        // senders that have answered so far
    std::vector<std::pair<uint64_t, std::string>> dead;  // senders to give up, and why
  };

  AwaitedLinks(Options options, const TransferTable& table, const PeerConnections& connections)
      : options_(std::move(options)), table_(table), connections_(connections), watch_(options_.watch) {}

  void Heard(uint64_t sender) { watch_.Heard(sender); }
  void Forget(uint64_t sender) { watch_.Forget(sender); }
  // Looks at the links, at most once a second.
  Verdict Look(int64_t now);
  // Returns when to look next; INT64_MAX while nothing is wanted and no link was silent.
  int64_t next_look() const {
    const bool watches = table_.wants() > 0 || watch_.silent_links() > 0;
    return watches ? watch_.next_look() : std::numeric_limits<int64_t>::max();
  }
  int silent_links() const { return watch_.silent_links(); }
  // Returns a sentence for each silent link on which something is awaited; "" for none.
  std::string DescribeSilence(int64_t now) const;

  // Notes that there is no link to the peer any more, though its process lives.
  void NoteLost(const std::string& label);
  // Returns an error that names the first such peer; OK for none.
  const absl::Status& lost() const { return lost_; }

 private:
  std::string DescribeWait(const TransferTable::PeerWants& wants, int64_t now) const;
  void Log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const Options options_;
  const TransferTable& table_;
  const PeerConnections& connections_;
  LinkWatch watch_;
  int64_t last_look_ = 0;
  absl::Status lost_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_AWAITED_LINKS_H_
