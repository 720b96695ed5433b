// Tests who may connect to the UCX transport, and by which paths tensors go to a peer.
#include "worker/shell/transport/admitted_peers.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/transport/peer_paths.h"
#include "worker/shell/transport/peer_process.h"

namespace weft::admitted_peers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::string kA = "aaaa", kB = "bbbb", kC = "cccc";  // IPv4 addresses, as bytes

TransportAddress AddressOf(uint64_t sender, const std::string& source) {
  TransportAddress address;
  address.sender = sender;
  address.sources = {source};
  return address;
}

class AdmittedPeersTest : public ::testing::Test {
 protected:
  absl::Status answer;
  std::vector<std::vector<std::string>> set;  // each filter that was set
  AdmittedPeers admitted{{"self"}, [this](const std::vector<std::string>& addresses) {
                           set.push_back(addresses);
                           return answer;
                         }};
};

TEST_F(AdmittedPeersTest, FilterIsSetOnceForManyAndNotForKnownOnes) {
  EXPECT_TRUE(admitted.Add({AddressOf(1, kA), AddressOf(2, kB)}).ok());
  EXPECT_THAT(set, ElementsAre(UnorderedElementsAre(kA, kB)));
  EXPECT_TRUE(admitted.Add({AddressOf(1, kA)}).ok());
  EXPECT_EQ(set.size(), 1u);
  EXPECT_TRUE(admitted.Add({}).ok());
  EXPECT_EQ(set.size(), 1u);
}

TEST_F(AdmittedPeersTest, RemovedPeers_AreShutOut) {
  EXPECT_TRUE(admitted.Add({AddressOf(1, kA), AddressOf(2, kB), AddressOf(3, kC)}).ok());
  admitted.Remove(2);
  EXPECT_THAT(set.back(), UnorderedElementsAre(kA, kC));
  admitted.Remove(2);
  EXPECT_EQ(set.size(), 2u) << "nothing changed";
  admitted.KeepOnly([](uint64_t sender) { return sender != 3; });
  EXPECT_THAT(set.back(), ElementsAre(kA));
  admitted.KeepOnly([](uint64_t) { return true; });
  EXPECT_EQ(set.size(), 3u) << "nothing changed";
}

TEST_F(AdmittedPeersTest, FilterThatCannotBeSet_IsAFailureOfAdding) {
  answer = absl::ResourceExhaustedError("the kernel takes no filter");
  EXPECT_EQ(admitted.Add({AddressOf(1, kA)}), answer);
}

class PeerPathsTest : public ::testing::Test {
 protected:
  PeerConnection Choose(const std::vector<std::string>& transports) {
    PeerConnection connection;
    ChoosePaths(options, own, peer, transports, &connection);
    return connection;
  }

  UcxOptions options;
  DeviceIdentity own;
  TransportAddress peer = [] {
    TransportAddress address;
    address.process = ThisProcess();
    return address;
  }();
};

TEST_F(PeerPathsTest, WithoutADevice_TheLineNamesTheHostsPathOnly) {
  const PeerConnection connection = Choose({"tcp"});
  EXPECT_EQ(DescribePaths("process 1", connection), "tensors to process 1: host memory by tcp");
  EXPECT_FALSE(connection.carries_device);
}

TEST_F(PeerPathsTest, DeviceMemoryThatIsStaged_SaysWhy) {
  options.device_memory = reinterpret_cast<MemorySource*>(this);  // it is only compared with null
  options.device_kind = "cuda";
  EXPECT_THAT(Choose({"tcp", "cuda_ipc"}).staged_because, HasSubstr("libuct_cuda.so cannot be loaded"));
  own.kind = "cuda";
  EXPECT_THAT(Choose({"tcp", "cuda_ipc"}).staged_because, HasSubstr("the other process does not take"));
  peer.device.kind = "cuda";
  EXPECT_EQ(Choose({"tcp"}).staged_because, "no transport of UCX reaches it");
  const PeerConnection direct = Choose({"tcp", "cuda_ipc"});
  EXPECT_TRUE(direct.carries_device);
  EXPECT_EQ(DescribePaths("process 1", direct),
            "tensors to process 1: host memory by tcp, device memory by cuda_ipc");
  options.device_direct = false;
  own.kind = "";
  EXPECT_EQ(Choose({"tcp", "cuda_ipc"}).staged_because, "as WEFT_DEVICE_DIRECT=0 asks");
}

}  // namespace
}  // namespace weft::admitted_peers_test
