// A library with the part of NVML's interface that the GPU monitor uses, for one GPU whose figures a test
// reads back. FAKE_NVML in the environment: "no_power" is a GPU that does not measure its power, "no_driver"
// a library whose driver is not there.
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6, kDriverNotLoaded = 9;
char gpu;

bool Says(const char* what) {
  const char* mode = std::getenv("FAKE_NVML");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

}  // namespace

extern "C" {
int nvmlInit_v2() { return Says("no_driver") ? kDriverNotLoaded : kSuccess; }
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &gpu;
  return std::strcmp(uuid, "GPU-1") == 0 ? kSuccess : kNotFound;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  rates[0] = 87;
  rates[1] = 20;
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 80'000;
  memory[1] = 50'000;
  memory[2] = 30'000;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return Says("no_power") ? kNotSupported : kSuccess;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return kSuccess;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = sensor == 0 ? 63 : 0;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* megahertz) {
  *megahertz = clock == 1 ? 1'980 : clock == 2 ? 2'619 : 0;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x4 | 0x1;  // at its power limit; bit 0 says idle and is no reason to look
  return kSuccess;
}
}
