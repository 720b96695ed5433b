// The simulated world: tensors between processes, by the state machines of the transports and over a network
// that loses messages; and what workers report.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world_run.h"

namespace weft {
namespace {

// `owner`, if given, lives as long as the tensor.
Tensor TensorOf(Value value, std::shared_ptr<void> owner) {
  const std::shared_ptr<Value> copy(new Value(value), [owner = std::move(owner)](Value* v) { delete v; });
  return Tensor{{DataType::kUInt8, 1, {sizeof(Value)}}, nullptr, sizeof(Value), copy};
}

Value ValueOf(const Tensor& tensor) { return *static_cast<const Value*>(tensor.owner.get()); }

}  // namespace

void World::BeginTransfers(Process& p, const Assign& assign) {
  p.table.BeginEpoch(assign.run, assign.epoch);
  p.held.BeginEpoch(assign.run, assign.epoch);
  std::vector<TransportEvent> events;
  for (const Peer& peer : assign.peers) {
    if (peer.process != p.number)
      p.table.AddPeer(peer.process, process_at_[peer.process]->sender(), peer.label, &events);
  }
  if (!events.empty()) Problem("a transfer of a former attempt was left");
}

// Sends a message to the process of that sender, or loses it.
void World::SendBetween(uint64_t to, std::function<void(Process&)> handle) {
  if (random_.Chance(options_.transfer_loss)) {
    ++result_.transfers_lost;
    return;
  }
  Process& p = *processes_[to - 1];
  AtOf(p, now_ + 500 + random_.Below(options_.transfer_delay_ns),
       [&p, handle = std::move(handle)] { handle(p); });
}

void World::Want(Process& p, const WantEffect& e) {
  CountFetch(e.key);
  CountReceivedBytes(e.key);
  std::vector<TransportEvent> events;
  if (!p.table.Want(e.process, e.key, now_, &events))
    return Problem(absl::StrCat("refused: ", Describe(e.key)));
  SendWant(p, e.process, e.key, /*again=*/false);
  LookLater(p);
}

void World::SendWant(Process& p, PeerId producer, const TensorKey& key, bool again) {
  SendBetween(*p.table.SenderOf(producer),
              [this, key, again, from = p.sender()](Process& q) { TakeWant(q, from, key, again); });
}

void World::TakeWant(Process& p, uint64_t from, const TensorKey& key, bool again) {
  if (again) {
    const HeldOffers::Answer answer = p.held.AskedAgain(from, key, now_);
    if (answer.again == HeldOffers::Again::kSend) SendOffer(p, answer.offer);
    if (answer.again == HeldOffers::Again::kGiveUp) Problem(absl::StrCat("given up: ", Describe(key)));
    if (answer.again != HeldOffers::Again::kNone) return;
  }
  const std::optional<Delivery> due = p.table.OnWant(from, key, /*in_place_ok=*/false, again);
  if (!due.has_value()) return;
  p.offered.erase(key);
  HandOver(p, *due);
}

void World::Offer(Process& p, int to, const TensorKey& key, Value value, std::shared_ptr<void> owner) {
  if (const std::optional<Delivery> due = p.table.Offer(to, key, TensorOf(value, std::move(owner)))) {
    HandOver(p, *due);
  } else {
    p.offered.insert(key);
  }
}

void World::HandOver(Process& p, const Delivery& delivery) {
  HeldOffer offer{*p.table.SenderOf(delivery.peer), delivery.key, delivery.tensor};
  offer.sent_ns = now_;
  SendOffer(p, p.held.Add(std::move(offer)));
  LookLater(p);
}

void World::SendOffer(Process& p, uint64_t offer) {
  const HeldOffer& held = *p.held.Find(offer);
  SendBetween(held.consumer, [this, key = held.key, value = ValueOf(held.tensor), offer,
                              from = p.sender()](Process& q) { TakeTensor(q, from, key, value, offer); });
}

void World::TakeTensor(Process& p, uint64_t from, const TensorKey& key, Value value, uint64_t offer) {
  SendBetween(from, [to = p.sender(), offer](Process& q) { q.held.Release(to, offer); });
  const std::optional<PeerId> peer = p.table.PeerOf(from);
  if (peer.has_value() && p.table.IsAwaited(*peer, key) && p.table.Take(*peer, key)) Arrive(p, key, value);
}

void World::FollowGradient(Process& p, const StartEffect& start, Outputs* outputs) {
  if (!start.last() || !p.core.AwaitsTaking(start.job)) return;
  Tensor gradient;
  p.taken.Follow({p.core.run_id(), p.core.epoch(), start.rank, start.job.stage}, &gradient);
  outputs->gradient_owner = gradient.owner;
}

// A process is told a little after a tensor has been taken.
void World::TellOfTakenTensors() {
  for (const auto& process : processes_) {
    Process& p = *process;
    for (const TakenTensor& tensor : p.taken.Take()) {
      if (p.dead || tensor.epoch != epoch_) continue;
      for (const Job& job : tensor.waiting) --given_[job];
      if (tensor.waiting.empty()) {
        activation_bytes_[tensor.rank] -= plan_->graph.terms().memory->gradient_bytes[tensor.stage];
      }
      AtOf(p, now_ + 1 + random_.Below(50'000), [this, &p, tensor] {
        WorkerEffects effects;
        p.core.OnTensorTaken(now_, tensor, &effects);
        Carry(p, std::move(effects), nullptr);
        Pump(p);
      });
    }
  }
}

void World::Arrive(Process& p, const TensorKey& key, Value value) {
  Note(Mix(14, value));
  if (key.kind == TensorKind::kCopy) {
    KeepArrived(p, key, value);
  } else if (key.kind != TensorKind::kOrder) {
    p.inbox[key] = value;
  }
  WorkerEffects effects;
  p.core.OnTensor(now_, key, {now_ - 1}, &effects);
  Carry(p, std::move(effects), nullptr);
  Pump(p);
}

// Looks now and then, as transports do, for what was lost.
void World::LookLater(Process& p) {
  if (std::exchange(p.looks, true)) return;
  AtOf(p, now_ + kAnswerTime, [this, &p] {
    p.looks = false;
    Look(p);
  });
}

void World::Look(Process& p) {
  for (const TransferTable::PeerWants& wants : p.table.WantsByPeer()) {
    for (const TensorKey& key : p.table.AskAgain(wants.peer, now_))
      SendWant(p, wants.peer, key, /*again=*/true);
  }
  for (const uint64_t offer : p.held.Overdue(now_)) SendOffer(p, offer);
  if (p.table.wants() > 0 || !p.held.empty()) LookLater(p);
}

// Reports, from now on until the attempt is over, which jobs run.
void World::SendReports(Process& p) {
  AtInAttempt(p, now_ + options_.report_ns, [this, &p] {
    if (!p.core.has_run()) return;
    weft::Report report{p.core.run_id(), {}, {}};
    for (const auto& [rank, jobs] : running_) {
      if (process_of_rank_[rank] != p.number) continue;
      for (const Job& job : jobs) report.running.push_back({rank, job, now_ - began_[job]});
    }
    if (absl::Status s = p.session->worker_end.Send(std::move(report)); !s.ok())
      Problem(std::string(s.message()));
    Pump(p);
    SendReports(p);
  });
}

}  // namespace weft
