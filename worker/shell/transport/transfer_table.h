// Matches wants and offers, the two halves of a transfer, for all transports.
//
// Pure logic: no I/O, no clock (the time is an argument), no threads. A transport passes on the calls of its
// owner and the messages of its peers, and carries out what the table returns.
//
// A peer is named twice: by the owner's number (PeerId) and by the `sender` number that its messages carry. A
// want may arrive before the owner has connected its sender, or before this side has begun the epoch; such
// early wants are kept, at most kMaxEarlyWants of them, the oldest dropped first.
//
// Invariants:
//   1. A want ends once: Take, Cancel, FailPeer, LandingFailed, or silently by BeginEpoch. It has no
//      deadline: its tensor may be long in the making. It is asked for again now and then (AskAgain), in case
//      that a message was lost.
//   2. An offer is handed out for delivery at most once.
//   3. Wants and offers of an epoch other than the current one are not matched.
//
// Not thread-safe. Results are ordered by key, never by hash.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TABLE_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TABLE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/transport/transport.h"

namespace weft {

// A tensor whose want and offer have met: send it to `peer` now.
struct Delivery {
  PeerId peer = -1;
  TensorKey key;
  Tensor tensor;
  bool in_place_ok = false;  // true if the consumer can read the producer's memory
};

TransportEvent ArrivedEvent(PeerId peer, const TensorKey& key, Tensor tensor);

class TransferTable {
 public:
  static constexpr size_t kMaxEarlyWants = 64 * 1024;
  static constexpr size_t kMaxRemoteWants = 1024 * 1024;
  static constexpr int kMostLandings = 4;

  // Adds a peer. Numbers may be given anew: a number that went to another sender, and the former number of
  // this sender, lose their wants and offers; a sender's failure stays with it. Adding the same again only
  // changes the label.
  void AddPeer(PeerId peer, uint64_t sender, const std::string& label, std::vector<TransportEvent>* events);
  std::optional<PeerId> PeerOf(uint64_t sender) const;
  std::optional<uint64_t> SenderOf(PeerId peer) const;
  // Returns Ok, or why the peer failed. NotFound for a number that was never added.
  absl::Status PeerStatus(PeerId peer) const;
  const std::string& label(PeerId peer) const;
  // Fails a peer: fails the wants on it and drops the offers to it. The first cause stays, and later calls
  // return false. `report` also appends PeerFailed; it is false for a peer that said goodbye.
  bool FailPeer(PeerId peer, const absl::Status& cause, bool report, std::vector<TransportEvent>* events);

  void BeginEpoch(uint64_t run, uint64_t epoch);

  // The consumer's half. A want that is refused (another epoch, unknown or failed peer, wanted already)
  // becomes a kWantFailed at once and returns false.
  bool Want(PeerId peer, const TensorKey& key, Nanos now, std::vector<TransportEvent>* events);
  // Returns the wants on the peer that are to be asked for again now, by key: those that have waited for some
  // time, seldom where it is long, and those of which bytes have been on their way for too long.
  std::vector<TensorKey> AskAgain(PeerId peer, Nanos now);
  // Returns the peer that was asked, or nothing if the key was not wanted.
  std::optional<PeerId> Cancel(const TensorKey& key);
  // Returns true if the key is wanted from `peer` and its bytes are not on their way yet.
  bool IsAwaited(PeerId peer, const TensorKey& key) const;
  // Returns true if the key is wanted from `peer`, also if its bytes are on their way.
  bool IsWanted(PeerId peer, const TensorKey& key) const;
  // Notes that so many bytes of the key are on their way: further ones are refused while those may come.
  void MarkLanding(const TensorKey& key, Nanos now, uint64_t bytes);
  // Notes that they will not come, though the peer lives. The want is asked for again soon; behind
  // kMostLandings failures it fails.
  void LandingFailed(const TensorKey& key, const absl::Status& cause, std::vector<TransportEvent>* events);
  // Ends the want because the tensor is here. Returns false if it ended before (cancel, epoch).
  bool Take(PeerId peer, const TensorKey& key);
  void FailWant(const TensorKey& key, const absl::Status& cause, std::vector<TransportEvent>* events);
  size_t wants() const { return wants_.size(); }
  // A peer whose tensors are wanted, with the oldest want. WantsByPeer returns them ascending.
  struct PeerWants {
    PeerId peer = -1;
    TensorKey oldest;
    Nanos since = 0;
    int count = 0;
  };
  std::vector<PeerWants> WantsByPeer() const;

  // The producer's half. Each returns the delivery that is due, if the other half was there. A tensor whose
  // shape does not fit its bytes is a broken invariant of the caller and ends the process.
  std::optional<Delivery> Offer(PeerId peer, const TensorKey& key, Tensor tensor);
  // A want may come `again`.
  std::optional<Delivery> OnWant(uint64_t sender, const TensorKey& key, bool in_place_ok, bool again = false);
  void OnCancel(uint64_t sender, const TensorKey& key);
  uint64_t offered_bytes() const { return offered_bytes_; }
  size_t offers() const { return offers_.size(); }

  // Returns how many messages and offers had no use: stale, duplicate, of a failed peer, or beyond a bound.
  uint64_t dropped() const { return dropped_; }
  // Adds the messages that it dropped, and the wants that it had said again.
  TransportCounters WithCounts(TransportCounters counters) const;

 private:
  struct Peer {
    uint64_t sender = 0;
    std::string label;
    absl::Status status;
  };
  struct PendingWant {
    PeerId peer;
    Nanos since, asked;
    Nanos landing_until = 0;  // time by which bytes on their way must have come; 0: none are
    int failed_landings = 0;
  };
  struct EarlyWant {
    uint64_t sender;
    TensorKey key;
    bool in_place_ok;
  };
  using ByPeer = std::pair<PeerId, TensorKey>;

  bool InEpoch(const TensorKey& key) const { return key.run == run_ && key.epoch == epoch_; }
  bool IsStale(const TensorKey& key) const { return key.run == run_ && key.epoch < epoch_; }
  absl::Status CheckWant(PeerId peer, const TensorKey& key) const;
  void FailWantsOn(PeerId peer, const absl::Status& cause, std::vector<TransportEvent>* events);
  void DropOffersTo(PeerId peer);
  void RemovePeer(PeerId peer, const std::string& reason, std::vector<TransportEvent>* events);
  void KeepEarly(EarlyWant want);
  void AdmitEarlyWants();

  uint64_t run_ = 0, epoch_ = 0;
  absl::flat_hash_map<PeerId, Peer> peers_;
  absl::flat_hash_map<uint64_t, PeerId> peer_of_;
  absl::btree_map<TensorKey, PendingWant> wants_;
  absl::btree_map<ByPeer, Tensor> offers_;
  absl::btree_map<ByPeer, bool> remote_wants_;  // value: in_place_ok
  std::deque<EarlyWant> early_wants_;
  uint64_t offered_bytes_ = 0;
  uint64_t dropped_ = 0, asked_again_ = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_TABLE_H_
