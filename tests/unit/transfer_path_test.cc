// The names of the ways that tensors take, from the transports that UCX chose.
#include "worker/shell/transport/transfer_path.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(TransferPath, Host_IsWhatUcxPrefersForBulk) {
  EXPECT_EQ(HostPath({"sysv", "cma", "tcp"}), "cma");
  EXPECT_EQ(HostPath({"sysv", "tcp"}), "sysv");
  EXPECT_EQ(HostPath({"ud_verbs", "rc_verbs", "tcp"}), "rc_verbs");
  EXPECT_EQ(HostPath({"tcp"}), "tcp");
  EXPECT_EQ(HostPath({}), "");
}

TEST(TransferPath, Device_GoesOnlyWhereATransportReachesIt) {
  EXPECT_EQ(DevicePath("cuda", false, {"sysv", "cma", "cuda_ipc", "cuda_copy"}), "cuda_ipc");
  EXPECT_EQ(DevicePath("cuda", true, {"rc_mlx5", "cuda_ipc"}), "cuda_ipc");
  EXPECT_EQ(DevicePath("rocm", false, {"cuda_ipc", "rocm_ipc"}), "rocm_ipc");
  EXPECT_EQ(DevicePath("cuda", true, {"tcp", "dc_mlx5"}), "dc_mlx5");
  EXPECT_EQ(DevicePath("cuda", false, {"tcp", "dc_mlx5"}), "staged");
  EXPECT_EQ(DevicePath("cuda", true, {"sysv", "cma", "tcp", "cuda_copy"}), "staged");
  EXPECT_EQ(DevicePath("host", false, {"tcp"}), "tcp");
  EXPECT_EQ(DevicePath("host", false, {}), "staged");
  EXPECT_EQ(DevicePath("", true, {"cuda_ipc", "rc_mlx5"}), "staged");
}

}  // namespace
}  // namespace weft
