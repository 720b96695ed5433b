// Keeps the worker processes that are connected, by session: their names, their process numbers, whether they
// are free.
//
// opened --Hello--> free --Take--> busy --Finished--> free        (each may be broken until its grace ends)
// busy --Abort--> ending --Forgotten--> free
//
// Invariants: a process number belongs to at most one worker; a worker is busy with, or ends, at most one
// run. A worker whose run was aborted may still be in the middle of a job, or hang in a file: it takes no
// other run before it has reported that nothing of the old one is left. Pure; ordered by session, so that
// nothing depends on a hash order.
#ifndef WEFT_COORDINATOR_CORE_WORKER_TABLE_H_
#define WEFT_COORDINATOR_CORE_WORKER_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/events.h"
#include "proto/session/link_clock.h"

namespace weft {

struct Worker {
  SessionId session = 0;
  bool greeted = false;  // true once Hello came
  Hello hello;
  int32_t process = -1;
  uint64_t run = 0;  // 0: free
  // Time when the run was aborted, while the worker has not reported that it has forgotten it; 0 otherwise.
  int64_t ending_since_ns = 0;
  bool reported_late = false;  // true once the log has said that it is late with that
  // True if the last run that it served failed here, by its own words or its silence.
  bool failed_last = false;
  bool returning = false;  // true while it tells what it has of the time before its session
  bool leaving = false;    // true once it wants to end: it takes no other run
  bool broken = false;
  std::string broken_reason;
  int64_t broken_ns = 0;      // time when it broke
  int64_t deadline = kNever;  // deadline of the Hello, or of the grace of a broken session
  int64_t heard_ns = 0;       // time of the last message

  // Tells its process from all others: the machine and the pid. Several workers of a process serve a run
  // each.
  using ProcessKey = std::pair<absl::string_view, int64_t>;
  ProcessKey process_key() const { return {hello.host, hello.pid}; }
  // Returns "process 2 (weft-worker-2, pid 4711 on host a)".
  std::string Label() const;
  // Returns the machine that it is on.
  absl::string_view node() const { return hello.node.empty() ? hello.host : hello.node; }
  bool free() const { return greeted && !returning && !broken && !leaving && run == 0; }
  bool connected() const { return greeted && !broken && !leaving && !(ending() && reported_late); }
  bool ending() const { return run != 0 && ending_since_ns != 0; }
  bool serves() const { return run != 0 && ending_since_ns == 0; }
};

// Returns the workers as their peers get to know them.
std::vector<Peer> PeersOf(const std::vector<Worker*>& workers);
// Returns the bytes of all these messages together, if each worker gets all peers.
int64_t BytesToTell(const std::vector<Peer>& peers);

// Lists of workers by state, each by session. Valid until a worker changes.
struct WorkerSurvey {
  std::vector<Worker*> free;
  std::vector<Worker*> taken;   // workers with a run, which they serve or end
  std::vector<Worker*> ending;  // those of them that end an aborted run
  // Workers of each pool that greeted and whose session is not broken, free or taken; without those that are
  // late with the end of an aborted run.
  std::map<std::string, size_t> connected;

  size_t connected_in(const std::string& pool) const;
  // Returns workers, of the free ones, in the order in which a run that needs so many takes them: those with
  // which the last run failed last; of a process that serves several runs one before any other of it, and
  // those of processes that serve fewer runs first; then those of as few nodes as possible, of the node that
  // has the fewest if several have enough; then by process number.
  std::vector<Worker*> InOrder(std::vector<Worker*> workers, size_t needed) const;
};

// Sorts the workers of a run as its ranks are dealt out: those of one node together, since what neighbours
// exchange then stays on it, and nodes and workers by process number.
void SortForRanks(std::vector<Worker*>* workers);

class WorkerTable {
 public:
  Worker& Open(SessionId session, int64_t hello_deadline);
  Worker* Find(SessionId session);
  const Worker* Find(SessionId session) const;
  Worker* FindByName(const std::string& name);
  Worker* FindByProcess(int32_t process);
  Worker* FindByPid(int64_t pid);
  // Returns the worker of that name, else the one whose process has the number; null for none.
  Worker* FindNamed(const std::string& text);
  const Worker* FindNamed(const std::string& text) const {
    return const_cast<WorkerTable*>(this)->FindNamed(text);
  }
  void Remove(SessionId session) { workers_.erase(session); }

  // Returns the wanted number if it is free, else AlreadyExists; for -1 the smallest that is free and for
  // which `reserved` is false.
  absl::StatusOr<int32_t> NumberFor(int32_t wanted, const std::function<bool(int32_t)>& reserved) const;

  // Looks at all workers, which may be many.
  WorkerSurvey Survey();

  std::map<SessionId, Worker>& all() { return workers_; }
  const std::map<SessionId, Worker>& all() const { return workers_; }

 private:
  std::map<SessionId, Worker> workers_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WORKER_TABLE_H_
