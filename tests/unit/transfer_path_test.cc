// The names of the ways that tensors take, from the transports that UCX chose.
#include "worker/shell/transport/transfer_path.h"

#include <gtest/gtest.h>

namespace weft::transfer_path_test {
namespace {

TEST(TransferPath, Host_IsWhatUcxPrefersForBulk) {
  EXPECT_EQ(HostPath({"sysv", "cma", "tcp"}), "cma");
  EXPECT_EQ(HostPath({"sysv", "tcp"}), "sysv");
  EXPECT_EQ(HostPath({"ud_verbs", "rc_verbs", "tcp"}), "rc_verbs");
  EXPECT_EQ(HostPath({"tcp"}), "tcp");
  EXPECT_EQ(HostPath({}), "");
}

TEST(TransferPath, Device_GoesOnlyWhereATransportReachesIt) {
  EXPECT_EQ(DevicePath("cuda", false, true, {"sysv", "cma", "cuda_ipc", "cuda_copy"}), "cuda_ipc");
  EXPECT_EQ(DevicePath("cuda", true, true, {"rc_mlx5", "cuda_ipc"}), "cuda_ipc");
  EXPECT_EQ(DevicePath("rocm", false, true, {"cuda_ipc", "rocm_ipc"}), "rocm_ipc");
  EXPECT_EQ(DevicePath("cuda", true, true, {"tcp", "dc_mlx5"}), "dc_mlx5");
  EXPECT_EQ(DevicePath("cuda", false, true, {"tcp", "dc_mlx5"}), "staged");
  EXPECT_EQ(DevicePath("cuda", true, true, {"sysv", "cma", "tcp", "cuda_copy"}), "staged");
  EXPECT_EQ(DevicePath("host", false, true, {"tcp"}), "tcp");
  EXPECT_EQ(DevicePath("host", false, true, {}), "staged");
  EXPECT_EQ(DevicePath("", true, true, {"cuda_ipc", "rc_mlx5"}), "staged");
}

TEST(TransferPath, Device_PeerWhosePidIsNotSeen_IsNotReachedByIpc) {
  EXPECT_EQ(DevicePath("cuda", false, false, {"sysv", "cma", "cuda_ipc", "cuda_copy"}), "staged");
  EXPECT_EQ(DevicePath("cuda", true, false, {"rc_mlx5", "cuda_ipc"}), "rc_mlx5");
  EXPECT_EQ(DevicePath("host", false, false, {"tcp"}), "tcp");
}

}  // namespace
}  // namespace weft::transfer_path_test
