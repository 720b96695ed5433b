// The worker processes that are connected, by session: who they are, their process numbers, whether they are
// free.
//
//   opened --Hello--> free <--Take/Release--> busy        (either may be broken until its grace ends)
//
// Invariants: a process number belongs to at most one worker; a worker is busy with at most one run. Pure;
// ordered by session, so that nothing depends on a hash order.
#ifndef WEFT_COORDINATOR_CORE_WORKER_TABLE_H_
#define WEFT_COORDINATOR_CORE_WORKER_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/events.h"
#include "proto/session/link_clock.h"

namespace weft {

struct Worker {
  SessionId session = 0;
  bool greeted = false;  // Hello came
  Hello hello;
  int32_t process = -1;
  uint64_t run = 0;  // 0: free
  bool broken = false;
  std::string broken_reason;
  int64_t deadline = kNever;  // of the Hello, or of the grace of a broken session
  int64_t heard_ns = 0;       // last message

  // "process 2 (weft-worker-2, pid 4711 on host a)"
  std::string Label() const;
  bool free() const { return greeted && !broken && run == 0; }
};

class WorkerTable {
 public:
  Worker& Open(SessionId session, int64_t hello_deadline);
  Worker* Find(SessionId session);
  const Worker* Find(SessionId session) const;
  Worker* FindByName(const std::string& name);
  Worker* FindByProcess(int32_t process);
  Worker* FindByPid(int64_t pid);
  void Remove(SessionId session) { workers_.erase(session); }

  // The wanted number if it is free, else AlreadyExists; for -1 the smallest free one.
  absl::StatusOr<int32_t> NumberFor(int32_t wanted) const;

  // Free workers by process number.
  std::vector<Worker*> Free();

  // Workers that greeted and whose session is not broken, free or busy.
  size_t Connected() const;

  std::map<SessionId, Worker>& all() { return workers_; }
  const std::map<SessionId, Worker>& all() const { return workers_; }

 private:
  std::map<SessionId, Worker> workers_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_WORKER_TABLE_H_
