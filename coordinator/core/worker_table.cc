#include "coordinator/core/worker_table.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/session/worker_info.h"

namespace weft {

std::string Worker::Label() const { return WorkerLabel(process, hello.worker, hello.pid, hello.host); }

Worker& WorkerTable::Open(SessionId session, int64_t hello_deadline) {
  Worker& w = workers_[session];
  w.session = session;
  w.deadline = hello_deadline;
  return w;
}

Worker* WorkerTable::Find(SessionId session) {
  const auto it = workers_.find(session);
  return it == workers_.end() ? nullptr : &it->second;
}

const Worker* WorkerTable::Find(SessionId session) const {
  const auto it = workers_.find(session);
  return it == workers_.end() ? nullptr : &it->second;
}

Worker* WorkerTable::FindByName(const std::string& name) {
  for (auto& [id, w] : workers_) {
    if (w.greeted && w.hello.worker == name) return &w;
  }
  return nullptr;
}

Worker* WorkerTable::FindByProcess(int32_t process) {
  for (auto& [id, w] : workers_) {
    if (w.greeted && w.process == process) return &w;
  }
  return nullptr;
}

Worker* WorkerTable::FindNamed(const std::string& text) {
  int32_t number = -1;
  if (Worker* named = FindByName(text)) return named;
  return absl::SimpleAtoi(text, &number) && number >= 0 ? FindByProcess(number) : nullptr;
}

Worker* WorkerTable::FindByPid(int64_t pid) {
  for (auto& [id, w] : workers_) {
    if (w.greeted && w.hello.pid == pid) return &w;
  }
  return nullptr;
}

absl::StatusOr<int32_t> WorkerTable::NumberFor(int32_t wanted,
                                               const std::function<bool(int32_t)>& reserved) const {
  std::set<int32_t> taken;
  for (const auto& [id, w] : workers_) {
    if (!w.greeted) continue;
    if (w.process == wanted) {
      return absl::AlreadyExistsError(absl::StrCat("process number ", wanted, " is taken by ", w.Label()));
    }
    if (wanted < 0) taken.insert(w.process);
  }
  if (wanted >= 0) return wanted;
  int32_t number = 0;
  while (taken.count(number) > 0 || reserved(number)) ++number;
  return number;
}

WorkerSurvey WorkerTable::Survey() {
  WorkerSurvey survey;
  auto pool = survey.connected.end();  // of the worker before, as most are of one
  for (auto& [id, w] : workers_) {
    if (w.free()) survey.free.push_back(&w);
    if (w.run != 0) survey.taken.push_back(&w);
    if (w.greeted && w.ending()) survey.ending.push_back(&w);
    if (pool == survey.connected.end() || pool->first != w.hello.pool)
      pool = survey.connected.try_emplace(w.hello.pool, 0).first;
    pool->second += w.connected() ? 1 : 0;
  }
  return survey;
}

size_t WorkerSurvey::connected_in(const std::string& pool) const {
  const auto found = connected.find(pool);
  return found == connected.end() ? 0 : found->second;
}

namespace {

// A node as a run looks at it: nodes that have enough workers come first, the smallest of them first; then
// the others, the largest first.
using NodeOrder = std::tuple<bool, int64_t, int32_t>;

// Returns the order of the nodes of the workers, which are sorted by process number.
absl::flat_hash_map<absl::string_view, NodeOrder> NodesInOrder(const std::vector<Worker*>& workers,
                                                               size_t needed) {
  absl::flat_hash_map<absl::string_view, NodeOrder> nodes;
  for (const Worker* w : workers) {
    const auto [node, is_new] = nodes.try_emplace(w->node(), NodeOrder{false, 0, w->process});
    ++std::get<1>(node->second);
  }
  for (auto& [name, order] : nodes) {
    auto& [lacks, count, process] = order;
    lacks = count < static_cast<int64_t>(needed);
    if (lacks) count = -count;
  }
  return nodes;
}

bool ByProcess(const Worker* a, const Worker* b) { return a->process < b->process; }

}  // namespace

std::vector<Worker*> WorkerSurvey::InOrder(std::vector<Worker*> workers, size_t needed) const {
  absl::flat_hash_map<Worker::ProcessKey, int> serving, seen;
  for (const Worker* w : taken) ++serving[w->process_key()];
  std::sort(workers.begin(), workers.end(), ByProcess);
  const auto nodes = NodesInOrder(workers, needed);
  // Key of a free worker; it contains how many free workers of its process come before it, and how many
  // serve.
  using Order = std::tuple<bool, int, int, NodeOrder>;
  std::vector<std::pair<Order, Worker*>> keyed;
  keyed.reserve(workers.size());
  for (Worker* w : workers) {
    const int before = seen[w->process_key()]++;
    keyed.push_back({{w->failed_last, before, serving[w->process_key()], nodes.at(w->node())}, w});
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < workers.size(); ++i) workers[i] = keyed[i].second;
  return workers;
}

void SortForRanks(std::vector<Worker*>* workers) {
  std::sort(workers->begin(), workers->end(), ByProcess);
  absl::flat_hash_map<absl::string_view, int32_t> first;  // process of each node
  for (const Worker* w : *workers) first.try_emplace(w->node(), w->process);
  std::stable_sort(workers->begin(), workers->end(), [&](const Worker* a, const Worker* b) {
    return first.at(a->node()) < first.at(b->node());
  });
}

std::vector<Peer> PeersOf(const std::vector<Worker*>& workers) {
  std::vector<Peer> peers;
  peers.reserve(workers.size());
  for (const Worker* w : workers) peers.push_back({w->process, w->hello.address, w->Label()});
  return peers;
}

int64_t BytesToTell(const std::vector<Peer>& peers) {
  size_t bytes = 0;
  for (const Peer& peer : peers) bytes += peer.address.size() + peer.label.size();
  return static_cast<int64_t>(bytes * peers.size());
}

}  // namespace weft
