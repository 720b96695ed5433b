// The NVIDIA driver's library as far as the loader asks it, of a machine that DRIVER_* describe.
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) { return DRIVER_INIT; }
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
