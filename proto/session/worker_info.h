// What the run API says of a worker process that is connected to the coordinator. Pure.
#ifndef WEFT_PROTO_SESSION_WORKER_INFO_H_
#define WEFT_PROTO_SESSION_WORKER_INFO_H_

#include <cstdint>
#include <string>

namespace weft {

struct WorkerInfo {
  int32_t process = 0;  // its number
  std::string name;
  std::string host;
  int64_t pid = 0;
  std::string device;     // kind of what computes: "cpu", "cuda"
  std::string state;      // free, busy, or broken: its connection is gone, it may come back
  uint64_t run = 0;       // that it serves; 0 for none
  int64_t silent_ns = 0;  // since its last message; workers that are busy report every second
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_WORKER_INFO_H_
