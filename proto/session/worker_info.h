// Holds what the run API says of a worker process that is connected to the coordinator. Pure.
#ifndef WEFT_PROTO_SESSION_WORKER_INFO_H_
#define WEFT_PROTO_SESSION_WORKER_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedules/job.h"

namespace weft {

struct WorkerInfo {
  int32_t process = 0;  // number of the process
  std::string name;
  std::string host;
  int64_t pid = 0;
  std::string device;  // kind of its device: "cpu", "cuda"
  // free, busy, silent (in a run, and it does not report), ending (an aborted run), leaving, or broken: its
  // session may come back
  std::string state;
  uint64_t run = 0;       // run that it serves; 0 for none
  int64_t silent_ns = 0;  // time since its last message; workers that are busy report twice a second
  std::string pool = {};  // "" for none
  std::string node = {};  // machine that it is on
  // The release of its program, and its libraries with their versions; "" from an older release.
  std::string release = {}, libraries = {};

  // A job that a rank computes, or can start at any moment.
  struct JobInHand {
    Rank rank = 0;
    Job job;
    int64_t age_ns = 0;  // how long it has been computed; 0: less than half a second, or not at all
    friend bool operator==(const JobInHand&, const JobInHand&) = default;
  };
  std::vector<JobInHand> jobs = {};  // by rank
};

// A coordinator's answer about its workers, and about itself.
struct FleetInfo {
  std::vector<WorkerInfo> workers;  // by number of the process
  std::string release;              // of the coordinator; "" from one that does not tell it
  int64_t unix_ns = 0;              // time of the answer by the coordinator's clock; 0 likewise
};

// Returns "process 2 (weft-worker-2, pid 4711 on host a)", as in RunInfo::members.
inline std::string WorkerLabel(int32_t process, const std::string& name, int64_t pid,
                               const std::string& host) {
  return absl::StrCat("process ", process, " (", name, ", pid ", pid, " on host ", host, ")");
}
// Returns the state, with the seconds of a silent or broken worker's silence: "silent 12 s".
inline std::string WorkerStateText(const WorkerInfo& worker) {
  const bool is_silent = worker.state == "silent" || worker.state == "broken";
  return is_silent ? absl::StrCat(worker.state, " ", worker.silent_ns / 1'000'000'000, " s") : worker.state;
}
inline std::string WorkerLabel(const WorkerInfo& worker) {
  return WorkerLabel(worker.process, worker.name, worker.pid, worker.host);
}

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_WORKER_INFO_H_
