// Keeps an in-place arrival readable. Dropping it, on any thread, gives the memory back to the producer.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_IN_PLACE_ARRIVAL_H_
#define WEFT_WORKER_SHELL_TRANSPORT_IN_PLACE_ARRIVAL_H_

#include <memory>
#include <utility>

#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/release_queue.h"

namespace weft {

class InPlaceArrival {
 public:
  InPlaceArrival(std::shared_ptr<PeerMapping> mapping, std::shared_ptr<ReleaseQueue> releases,
                 ReleaseQueue::Release release)
      : mapping_(std::move(mapping)), releases_(std::move(releases)), release_(release) {}
  ~InPlaceArrival() { releases_->Push(release_); }
  InPlaceArrival(const InPlaceArrival&) = delete;
  InPlaceArrival& operator=(const InPlaceArrival&) = delete;

 private:
  const std::shared_ptr<PeerMapping> mapping_;
  const std::shared_ptr<ReleaseQueue> releases_;
  const ReleaseQueue::Release release_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_IN_PLACE_ARRIVAL_H_
