// Accepts connections on a thread of its own and hands them on. listener.h says how it survives a lack of
// descriptors.
//
// `take` is called on that thread with a descriptor, which it owns from then on. Destruction ends the thread,
// then closes the listening sockets. Thread-safe.
#ifndef WEFT_BASE_NET_ACCEPTOR_H_
#define WEFT_BASE_NET_ACCEPTOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/net/listener.h"

namespace weft {

class Acceptor {
 public:
  Acceptor(std::unique_ptr<Listener> listener, std::function<void(int descriptor)> take);
  ~Acceptor();

  uint64_t refused() const { return refused_; }

 private:
  void Run();

  const std::unique_ptr<Listener> listener_;
  const std::function<void(int)> take_;
  const int stop_;  // readable when the thread is to end
  std::atomic<uint64_t> refused_{0};
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_BASE_NET_ACCEPTOR_H_
