#include "client/training/stop_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace weft {

StopSignals::StopSignals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&stops, signal);
  pthread_sigmask(SIG_BLOCK, &stops, &before_);
  descriptor_ = signalfd(-1, &stops, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) {
    std::perror("weft: signalfd");
    std::abort();
  }
}

StopSignals::~StopSignals() {
  // A signal that came too late must not end the process on the way out.
  while (Take() != 0) {
  }
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int StopSignals::Take() {
  signalfd_siginfo info;
  return read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

}  // namespace weft
