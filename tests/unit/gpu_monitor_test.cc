#include "worker/shell/metrics/gpu_monitor.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace weft::gpu_monitor_test {
namespace {

class Mode {
 public:
  explicit Mode(const char* mode) { setenv("FAKE_NVML", mode, 1); }
  ~Mode() { unsetenv("FAKE_NVML"); }
};

TEST(GpuMonitor, NoLibrary_IsNoMonitor) {
  EXPECT_EQ(GpuMonitor::Open("GPU-1", "libweft-of-no-such-name.so"), nullptr);
}

TEST(GpuMonitor, LibraryOfSomethingElse_IsNoMonitor) {
  EXPECT_EQ(GpuMonitor::Open("GPU-1", "libm.so.6"), nullptr);
}

TEST(GpuMonitor, LibraryWithoutDriver_IsNoMonitor) {
  const Mode mode("no_driver");
  EXPECT_EQ(GpuMonitor::Open("GPU-1", FAKE_NVML_LIBRARY), nullptr);
}

TEST(GpuMonitor, UnknownGpu_IsNoMonitor) { EXPECT_EQ(GpuMonitor::Open("GPU-2", FAKE_NVML_LIBRARY), nullptr); }

TEST(GpuMonitor, Gpu_HasItsFiguresInBasicUnits) {
  const auto monitor = GpuMonitor::Open("GPU-1", FAKE_NVML_LIBRARY);
  ASSERT_NE(monitor, nullptr);
  const GpuFigures expected = {
      {"utilization", 0.87},       {"memory_used_bytes", 30'000},   {"memory_total_bytes", 80'000},
      {"power_watts", 412.5},      {"power_limit_watts", 700},      {"temperature_celsius", 63},
      {"sm_clock_hertz", 1.98e9},  {"memory_clock_hertz", 2.619e9}, {"throttled_power_cap", 1},
      {"throttled_slowdown", 0},   {"throttled_thermal", 0},        {"throttled_hardware_thermal", 0},
      {"throttled_power_brake", 0}};
  const GpuFigures figures = monitor->Latest();
  ASSERT_EQ(figures.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_DOUBLE_EQ(figures.at(name), value) << name;
}

TEST(GpuMonitor, FigureThatTheGpuDoesNotHave_IsLeftOut) {
  const Mode mode("no_power");
  const auto monitor = GpuMonitor::Open("GPU-1", FAKE_NVML_LIBRARY);
  ASSERT_NE(monitor, nullptr);
  const GpuFigures figures = monitor->Latest();
  EXPECT_EQ(figures.count("power_watts"), 0u);
  EXPECT_EQ(figures.count("power_limit_watts"), 1u);
}

}  // namespace
}  // namespace weft::gpu_monitor_test
