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

std::vector<Worker*> WorkerSurvey::FreeInOrder() const {
  absl::flat_hash_map<Worker::ProcessKey, int> serving, seen;
  for (const Worker* w : taken) ++serving[w->process_key()];
  std::vector<Worker*> ordered = free;
  std::sort(ordered.begin(), ordered.end(),
            [](const Worker* a, const Worker* b) { return a->process < b->process; });
  // How many free workers of its process come before it, and how many serve.
  using Order = std::tuple<bool, int, int>;
  std::vector<std::pair<Order, Worker*>> keyed;
  keyed.reserve(ordered.size());
  for (Worker* w : ordered)
    keyed.push_back({{w->failed_last, seen[w->process_key()]++, serving[w->process_key()]}, w});
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = keyed[i].second;
  return ordered;
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
