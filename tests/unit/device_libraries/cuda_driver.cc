// The NVIDIA driver's library as far as the loader asks it, of a machine that DRIVER_* describe. Like the
// real one it starts a thread, which stays.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace {
sigset_t of_thread;

void* Stay(void*) {
  for (;;) pause();
}
}  // namespace

// Returns 1 if the thread that cuInit started has the signal blocked.
extern "C" __attribute__((visibility("default"))) int DriverThreadBlocks(int signal) {
  return sigismember(&of_thread, signal);
}

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  pthread_sigmask(SIG_BLOCK, nullptr, &of_thread);  // a new thread has the mask of the one that starts it
  pthread_t thread;
  if (pthread_create(&thread, nullptr, Stay, nullptr) == 0) pthread_detach(thread);
  return DRIVER_INIT;
}
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = DRIVER_VERSION;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int cuDeviceGetCount(int* count) {
  *count = DRIVER_DEVICES;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int cuGetErrorString(int error, const char** text) {
  if (error != 802) return 1;
  *text = "system not yet initialized";
  return 0;
}
