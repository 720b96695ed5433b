// Gives the signals by which a person or a system asks this process to stop (SIGINT, SIGTERM, SIGHUP) as a
// descriptor to wait on instead of handlers.
//
// Make it on the main thread before any other thread starts: threads inherit the blocked signals. Make at
// most one object.
#ifndef WEFT_CLIENT_TRAINING_STOP_SIGNALS_H_
#define WEFT_CLIENT_TRAINING_STOP_SIGNALS_H_

#include <signal.h>

namespace weft {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int descriptor() const { return descriptor_; }  // readable when a signal has come
  // Returns the next signal that came, or 0.
  int Take();

 private:
  int descriptor_ = -1;
  sigset_t before_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_STOP_SIGNALS_H_
