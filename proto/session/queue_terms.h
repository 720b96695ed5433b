// Holds by what terms a run waits for workers: what the coordinator's queue compares (run_queue.h). A value.
#ifndef WEFT_PROTO_SESSION_QUEUE_TERMS_H_
#define WEFT_PROTO_SESSION_QUEUE_TERMS_H_

#include <cstdint>
#include <string>

namespace weft {

struct QueueTerms {
  static constexpr int32_t kMaxPriority = 1000;

  int32_t priority = 0;  // from -kMaxPriority to kMaxPriority; higher ones start first
  std::string pool;      // the run gets workers of this pool alone; "": those without one
  std::string owner;     // name of the submitter's certificate or token; "" without TLS
  friend bool operator==(const QueueTerms&, const QueueTerms&) = default;
};

}  // namespace weft

#endif  // WEFT_PROTO_SESSION_QUEUE_TERMS_H_
