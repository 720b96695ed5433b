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

size_t WorkerTable::ConnectedIn(const std::string& pool) const {
  return std::count_if(workers_.begin(), workers_.end(),
                       [&](const auto& e) { return e.second.connected() && e.second.hello.pool == pool; });
}

std::vector<const Worker*> WorkerTable::Ending() const {
  std::vector<const Worker*> ending;
  for (const auto& [id, w] : workers_) {
    if (w.greeted && w.ending()) ending.push_back(&w);
  }
  return ending;
}

std::vector<Worker*> WorkerTable::Free() {
  absl::flat_hash_map<Worker::ProcessKey, int> serving, seen;
  std::vector<Worker*> free;
  for (auto& [id, w] : workers_) {
    if (w.run != 0) ++serving[w.process_key()];
    if (w.free()) free.push_back(&w);
  }
  std::sort(free.begin(), free.end(),
            [](const Worker* a, const Worker* b) { return a->process < b->process; });
  // How many free workers of its process come before it, and how many serve.
  using Order = std::tuple<bool, int, int>;
  std::vector<std::pair<Order, Worker*>> ordered;
  for (Worker* w : free)
    ordered.push_back({{w->failed_last, seen[w->process_key()]++, serving[w->process_key()]}, w});
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < free.size(); ++i) free[i] = ordered[i].second;
  return free;
}

std::vector<Peer> PeersOf(const std::vector<Worker*>& workers) {
  std::vector<Peer> peers;
  for (const Worker* w : workers) peers.push_back({w->process, w->hello.address, w->Label()});
  return peers;
}

int64_t BytesToTell(const std::vector<Peer>& peers) {
  size_t bytes = 0;
  for (const Peer& peer : peers) bytes += peer.address.size() + peer.label.size();
  return static_cast<int64_t>(bytes * peers.size());
}

}  // namespace weft
