// The UCX transport between real processes: reading in place, the death of a peer, and what is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/cuda_notice.h"
#include "tests/conformance/device_memory.h"
#include "tests/conformance/transport_fixture.h"
#include "tests/conformance/transport_peer.h"
#include "worker/shell/transport/listening_sockets.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::transport_process_test {
namespace {

using testing::Key;
using testing::kRun;
using testing::kSecond;
using testing::kStopStep;
using testing::TestDevice;
using Kind = TransportEvent::Kind;

constexpr PeerId kPeer = 2;

// A transport_peer process with pipes to its stdin and from its stdout; killed and reaped at the end.
class PeerProcess {
 public:
  PeerProcess(size_t bytes, int count, const std::map<std::string, std::string>& environment,
              const std::string& device) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) throw std::runtime_error("pipe");
    const std::string program =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "transport_peer").string();
    const std::string b = absl::StrCat(bytes), n = absl::StrCat(count);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // leaves nothing behind if this process is killed
      dup2(in[0], 0);
      dup2(out[1], 1);
      close_range(3, ~0U, 0);  // of this pair, and of others
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execl(program.c_str(), program.c_str(), "2", "1", b.c_str(), n.c_str(),
            device.empty() ? "none" : device.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~PeerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(to_);
    close(from_);
  }

  pid_t pid() const { return pid_; }
  std::string ReadAddress() {
    std::string hex;
    char c;
    while (read(from_, &c, 1) == 1 && c != '\n') hex += c;
    return absl::HexStringToBytes(hex);
  }
  bool WriteAddress(const std::string& address) {
    const std::string line = absl::BytesToHexString(address) + "\n";
    return write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }
  void Signal(int signal) { kill(pid_, signal); }
  int WaitForExit() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Dead but not yet reaped, as a process is whose parent is busy.
  void KillOnly() {
    kill(pid_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, pid_, &info, WEXITED | WNOWAIT);
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

// Returns the names of shared memory of UCX or Weft. Other programs keep files there too: CUDA's driver, and
// whatever has its TMPDIR there, as a compiler.
std::set<std::string> NamesInShm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    std::error_code gone;
    const std::string name = entry.path().filename();
    const bool ours = name.rfind("ucx", 0) == 0 || name.rfind("weft", 0) == 0;
    if (ours && entry.is_regular_file(gone)) names.insert(name);
  }
  return names;
}

// System V segments that `pid` created and that still exist.
int SysvSegmentsOf(pid_t pid) {
  std::ifstream file("/proc/sysvipc/shm");
  std::string line;
  std::getline(file, line);  // column names: key shmid perms size cpid ..
  int n = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    long long key, id, perms, size, creator;
    if (fields >> key >> id >> perms >> size >> creator && creator == pid) ++n;
  }
  return n;
}

struct Mode {
  const char* name;
  bool in_place;
  std::map<std::string, std::string> environment;  // of both processes
  std::string device;                              // kind of both processes' device; "": none
  bool carried = false;                            // tensors of the device go as they are
};

void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

// Variables of this process's environment, with their former values again at the end.
class ChangedEnvironment {
 public:
  explicit ChangedEnvironment(const std::map<std::string, std::string>& changes) {
    for (const auto& [name, value] : changes) {
      const char* former = std::getenv(name.c_str());
      former_[name] = former == nullptr ? std::nullopt : std::optional<std::string>(former);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ChangedEnvironment(const ChangedEnvironment&) = delete;
  ChangedEnvironment& operator=(const ChangedEnvironment&) = delete;
  ~ChangedEnvironment() {
    for (const auto& [name, value] : former_) {
      if (value.has_value()) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> former_;
};

// Returns the setting for a process with UCX's hooks into mmap, as a daemon has them; nothing in a build with
// sanitizers, whose own hooks exclude them.
std::map<std::string, std::string> WithHooks() {
  if (std::getenv("WEFT_TEST_TIME_FACTOR") != nullptr) return {};
  return {{"UCX_MEM_MMAP_HOOK_MODE", "bistro"}};
}

// A transport of this process and one of a peer.
class Pair {
 public:
  void Start(const Mode& mode, size_t bytes, int count) {
    mode_ = mode;
    shm_before_ = NamesInShm();
    if (device_ == nullptr) device_ = testing::OpenDevice(mode.device);
    const ChangedEnvironment environment(mode.environment);
    UcxOptions options = testing::OptionsWith(device_.get());
    options.link_notice_ns = link_notice_;
    options.link_timeout_ns = link_timeout_;
    absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    transport_->BeginEpoch(kRun, 1);
    peer_ = StartPeer(kPeer, bytes, count);
    label_ = LabelOf(kPeer, *peer_);
    ASSERT_EQ(transport_->CarriesDevice(kPeer), mode.carried);
  }
  std::string LabelOf(PeerId number, const PeerProcess& peer) {
    return absl::StrCat("process ", number, " (pid ", peer.pid(), ")");
  }
  std::unique_ptr<PeerProcess> StartPeer(PeerId number, size_t bytes, int count) {
    auto peer = std::make_unique<PeerProcess>(bytes, count, mode_.environment, mode_.device);
    const std::string address = peer->ReadAddress();
    EXPECT_TRUE(transport_->Admit({{address, LabelOf(number, *peer)}}).ok());
    EXPECT_TRUE(peer->WriteAddress(transport_->address()));
    const absl::Status connected = transport_->Connect(number, address, LabelOf(number, *peer));
    EXPECT_TRUE(connected.ok()) << connected;
    return peer;
  }
  // Returns true if the arrived tensor is where this mode has it, with these bytes.
  bool Holds(const Tensor& tensor, uint32_t seed) {
    EXPECT_EQ(tensor.place == MemoryPlace::kDevice, mode_.carried);
    return tensor.place == MemoryPlace::kDevice ? testing::DeviceHasPattern(*device_, tensor, seed)
                                                : testing::HasPattern(tensor, seed);
  }
  void Want(int step) { transport_->Want(kPeer, Key(step)); }

  // Drives the transport as the worker does: blocks when there is nothing to do.
  bool PumpUntil(const std::function<bool()>& done, Nanos limit = 60 * kSecond) {
    return PumpAllUntil({this}, done, limit);
  }
  // Drives the transports of all pairs at a time.
  static bool PumpAllUntil(const std::vector<Pair*>& pairs, const std::function<bool()>& done, Nanos limit) {
    std::vector<pollfd> wake;
    for (const Nanos end = MonotonicNow() + limit; !done();) {
      const Nanos now = MonotonicNow();
      if (now > end) return false;
      Nanos until = std::min(now + kSecond, end);
      bool idle = true;
      wake.clear();
      for (Pair* pair : pairs) {
        Transport& transport = *pair->transport_;
        idle = transport.Progress(now, &pair->events_) == 0 && transport.Arm() && idle;
        until = std::min(until, transport.next_look());
        wake.push_back({transport.event_fd(), POLLIN, 0});
      }
      if (idle)
        poll(wake.data(), wake.size(), static_cast<int>(std::max<Nanos>(until - now, 0) / 1'000'000 + 1));
    }
    return true;
  }
  bool PumpUntilEvents(size_t n, Nanos limit = 60 * kSecond) {
    return PumpUntil([&] { return events_.size() >= n; }, limit);
  }

  Nanos link_notice_ = 5 * kSecond, link_timeout_ = 120 * kSecond;
  Mode mode_;
  std::unique_ptr<TestDevice> device_;
  std::set<std::string> shm_before_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PeerProcess> peer_;
  std::vector<TransportEvent> events_;
  std::string label_;
};

class ProcessPair : public ::testing::Test, protected Pair {};

class TransportProcess : public ProcessPair, public ::testing::WithParamInterface<Mode> {
 protected:
  void Start(size_t bytes, int count) { ProcessPair::Start(GetParam(), bytes, count); }
};

const Mode kByTcp = {"tcp", false, {{"WEFT_IN_PLACE", "0"}, {"UCX_TLS", "tcp"}}, ""};

// A stopped process is to its peers what a link is that carries nothing.
TEST_F(ProcessPair, LinkCarriesNothing_IsToldWithPeerAndTensorAndHeals) {
  link_notice_ = 2 * kSecond;
  Start(kByTcp, 1000, 1);
  Want(0);
  ASSERT_TRUE(PumpUntilEvents(1));
  Want(1);
  EXPECT_FALSE(PumpUntil([&] { return transport_->silent_links() > 0; }, 6 * kSecond))
      << "the peer lives, and has not computed it yet";
  peer_->Signal(SIGSTOP);
  ASSERT_TRUE(PumpUntil([&] { return transport_->silent_links() > 0; }));
  const std::string silence = transport_->DescribeSilence(MonotonicNow());
  EXPECT_THAT(silence, ::testing::HasSubstr(absl::StrCat("waiting for ", Describe(Key(1)), " of ", label_)));
  EXPECT_THAT(silence, ::testing::HasSubstr("its data link (tcp) has been silent for "));
  peer_->Signal(SIGCONT);
  ASSERT_TRUE(PumpUntil([&] { return transport_->silent_links() == 0; }));
  EXPECT_EQ(transport_->DescribeSilence(MonotonicNow()), "");
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(ProcessPair, LinkCarriesNothingForTooLong_ThePeerIsLostWithTheTensorsName) {
  link_notice_ = kSecond;
  link_timeout_ = 3 * kSecond;
  Start(kByTcp, 1000, 1);
  Want(0);
  ASSERT_TRUE(PumpUntilEvents(1));
  peer_->Signal(SIGSTOP);
  Want(1);
  ASSERT_TRUE(PumpUntilEvents(3));
  EXPECT_EQ(events_[1].kind, Kind::kPeerFailed);
  EXPECT_EQ(std::string(events_[1].status.message()),
            absl::StrCat(label_, " is lost: its data link (tcp) has carried nothing for 3 s; awaited: ",
                         Describe(Key(1))));
  EXPECT_EQ(events_[2].kind, Kind::kWantFailed);
}

// The receive queue of a process is written by all others. Entries behind one that is never completed are not
// read by anybody.
TEST_F(ProcessPair, KillInTheMiddleOfAMessage_IsNoticedByTheOneThatHearsNobodyAnyMore) {
  Start(Mode{"in_place", true, {}, "", false}, 0, -1);
  const auto moves = [&] { return transport_->Progress(MonotonicNow(), &events_) > 0 || transport_->Arm(); };
  std::mt19937 random(1);
  const int64_t end = MonotonicNow() + 40 * kSecond;
  bool found = false;
  while (!found && MonotonicNow() < end) {
    const int64_t stop = MonotonicNow() + 100'000 + random() % 1'000'000;
    while (MonotonicNow() < stop) moves();
    peer_->Signal(SIGSTOP);
    int vain = 0;  // looks one after the other that found nothing, though there is something
    for (int i = 0; i < 2000; ++i) vain = moves() ? 0 : vain + 1;
    found = vain >= 1000;
    if (!found) peer_->Signal(SIGCONT);
  }
  if (!found) GTEST_SKIP() << "the writer was never stopped in the middle of an entry";
  events_.clear();
  Want(0);
  EXPECT_TRUE(transport_->health().ok()) << "a process that is stopped goes on later";
  peer_->KillOnly();
  ASSERT_TRUE(PumpUntil([&] { return !transport_->health().ok(); }, 10 * kSecond));
  EXPECT_THAT(std::string(transport_->health().message()),
              ::testing::HasSubstr("messages do not arrive here any more"));
}

TEST(TransportListener, WithinOneMachine_ThereIsNone) {
  const std::vector<TcpSocket> before = ListeningSockets();
  UcxOptions options;
  ChooseNetwork("auto", "unix:/run/weft/coordinator.sock", &options);
  const auto local = CreateUcxTransport(options);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(ListeningSockets(), before);
  UcxOptions loopback;
  ChooseNetwork("auto", "127.0.0.1:7070", &loopback);
  EXPECT_EQ(loopback.ucx_transports, kLocalUcxTransports);
  UcxOptions network;
  ChooseNetwork("eth7", "127.0.0.1:7070", &network);
  EXPECT_EQ(network.net_devices, "eth7");
  EXPECT_NE(network.ucx_transports, kLocalUcxTransports);
}

// UCX closes its listener like this when it is out of descriptors.
TEST(TransportListener, IsClosed_HealthSaysSo) {
  const std::vector<TcpSocket> before = ListeningSockets();
  const auto transport = CreateUcxTransport(UcxOptions{});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_TRUE((*transport)->health().ok());
  std::vector<TcpSocket> listening = ListeningSockets();
  std::erase_if(listening,
                [&](const TcpSocket& s) { return std::count(before.begin(), before.end(), s) > 0; });
  ASSERT_FALSE(listening.empty());
  // It stays open, so that closing the transport closes no descriptor of somebody else.
  const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(dup2(other, listening.front().fd), listening.front().fd);
  close(other);
  EXPECT_TRUE(absl::IsResourceExhausted((*transport)->health())) << (*transport)->health();
}

TEST(TransportConnect, PeerOfAnotherDataPlane_IsRefused) {
  UcxOptions tls;
  tls.tls_network = testing::LoopbackNetworkWith(testing::SharedWorkerCertificates());
  const auto plain = CreateUcxTransport(UcxOptions{}), secured = CreateUcxTransport(tls);
  ASSERT_TRUE(plain.ok() && secured.ok());
  for (const auto& [from, to] :
       {std::pair(plain->get(), secured->get()), std::pair(secured->get(), plain->get())}) {
    const absl::Status connected = from->Connect(kPeer, to->address(), "it");
    EXPECT_TRUE(absl::IsInvalidArgument(connected)) << connected;
    EXPECT_THAT(std::string(connected.message()), ::testing::HasSubstr("the same --data-plane"));
  }
}

// Processes of one machine do not send their tensors through TLS.
TEST(TransportConnect, PeerOfThisMachineBesideTls_IsReachedByItsMemory) {
  UcxOptions tls;
  tls.tls_network = testing::LoopbackNetworkWith(testing::SharedWorkerCertificates());
  const auto one = CreateUcxTransport(tls), other = CreateUcxTransport(tls);
  ASSERT_TRUE(one.ok() && other.ok());
  ASSERT_TRUE((*one)->Connect(kPeer, (*other)->address(), "it").ok());
  EXPECT_EQ((*one)->PathTo(kPeer, MemoryPlace::kHost), "in_place");
}

TEST(TransportConnect, AddressOfAnotherFormatOfUcx_IsRefused) {
  const auto transport = CreateUcxTransport(UcxOptions{});
  const auto liar = CreateUcxTransport(UcxOptions{});
  ASSERT_TRUE(transport.ok() && liar.ok());
  absl::StatusOr<TransportAddress> address = DecodeAddress((*liar)->address());
  ASSERT_TRUE(address.ok());
  for (int bit = 0; bit < 4; ++bit) {
    TransportAddress changed = *address;
    changed.messenger[0] = static_cast<char>(changed.messenger[0] ^ (1 << bit));
    const absl::Status connected = (*transport)->Connect(kPeer, EncodeAddress(changed), "the liar");
    EXPECT_TRUE(absl::IsInvalidArgument(connected)) << connected;
    EXPECT_THAT(std::string(connected.message()), ::testing::HasSubstr("the liar"));
  }
  EXPECT_TRUE((*transport)->Connect(kPeer, (*liar)->address(), "it").ok());
}

constexpr int kModesWithoutCuda = 9;

std::vector<Mode> Modes() {
  std::vector<Mode> modes = {
      {"in_place", true, WithHooks(), ""},
      {"in_place_posix_messages", true, {{"UCX_TLS", "posix,cma,tcp"}}, ""},
      {"copied", false, {{"WEFT_IN_PLACE", "0"}}, ""},
      {"tcp", false, {{"WEFT_IN_PLACE", "0"}, {"UCX_TLS", "tcp"}}, ""},
      {"tls", false, {{testing::kTlsVariable, testing::SharedWorkerCertificates()}}, ""},
      {"host_device", false, {}, "host", true},
      {"host_device_tcp", false, {{"UCX_TLS", "tcp"}}, "host", true},
      {"hidden_device_staged", true, {}, "hidden"},
      {"hidden_device_staged_tls",
       false,
       {{testing::kTlsVariable, testing::SharedWorkerCertificates()}},
       "hidden"},
  };
  if (modes.size() != kModesWithoutCuda) std::abort();
  if (testing::HasCuda()) {
    modes.push_back({"cuda", false, {}, "cuda", true});
    modes.push_back({"cuda_staged", true, {{"WEFT_DEVICE_DIRECT", "0"}}, "cuda"});
  }
  return modes;
}

INSTANTIATE_TEST_SUITE_P(Every, TransportProcess, ::testing::ValuesIn(Modes()),
                         [](const auto& info) { return std::string(info.param.name); });

[[maybe_unused]] const auto* const kNotice = ::testing::AddGlobalTestEnvironment(
    new testing::CudaNotice("Every/TransportProcess", kModesWithoutCuda, /*missing=*/2));

TEST_P(TransportProcess, Tensors_OfAnotherProcess_ArriveAndEverythingIsReleased) {
  constexpr size_t kBytes = 3'000'000;
  constexpr int kCount = 20;
  Start(kBytes, kCount);
  for (int i = kCount - 1; i >= 0; --i) Want(i);
  ASSERT_TRUE(PumpUntilEvents(kCount));
  for (const TransportEvent& event : events_) {
    ASSERT_EQ(event.kind, Kind::kArrived) << event.status;
    EXPECT_TRUE(Holds(event.tensor, event.key.step));
  }
  EXPECT_EQ(transport_->counters().bytes_received, kBytes * kCount);
  EXPECT_EQ(transport_->counters().bytes_in_place, GetParam().in_place ? kBytes * kCount : 0);
  EXPECT_EQ(transport_->counters().dropped_messages, 0u);
  events_.clear();  // drops the tensors
  transport_->Offer(kPeer, Key(kStopStep), Tensor{});
  // The wait lasts until the peer has said goodbye, so that it gets our releases.
  Want(kCount);
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(events_[0].kind, Kind::kWantFailed);
  EXPECT_THAT(std::string(events_[0].status.message()), ::testing::HasSubstr("has closed its connections"));
  transport_->Close(MonotonicNow() + 10 * kSecond);
  EXPECT_EQ(peer_->WaitForExit(), 0);
  EXPECT_EQ(NamesInShm(), shm_before_);
}

// Pairs of every mode. Checking that nothing happens takes seconds, so all pairs wait together.
class TransportProcesses : public ::testing::Test {
 protected:
  void Start(size_t bytes, int count) {
    for (const Mode& mode : Modes()) {
      SCOPED_TRACE(mode.name);
      pairs_.push_back(std::make_unique<Pair>());
      pairs_.back()->Start(mode, bytes, count);
    }
  }
  void Each(const std::function<void(Pair&)>& with) {
    for (const auto& pair : pairs_) {
      SCOPED_TRACE(pair->mode_.name);
      if (!HasFatalFailure()) with(*pair);
    }
  }
  // Expects that no transport has an event in that time.
  void ExpectQuiet(Nanos time, const char* why) {
    std::vector<Pair*> all;
    std::vector<size_t> before;
    for (const auto& pair : pairs_) {
      all.push_back(pair.get());
      before.push_back(pair->events_.size());
    }
    Pair::PumpAllUntil(
        all, [] { return false; }, time);
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i]->events_.size(), before[i]) << all[i]->mode_.name << ": " << why;
  }

  std::vector<std::unique_ptr<Pair>> pairs_;
};

TEST_F(TransportProcesses, Kill_WhileWantsArePending_IsReportedOnceNamingThePeer) {
  Start(2'000'000, 1);
  std::map<Pair*, Tensor> kept;
  Each([&](Pair& pair) {
    pair.Want(0);
    ASSERT_TRUE(pair.PumpUntilEvents(1));
    ASSERT_EQ(pair.events_[0].kind, Kind::kArrived);
    kept[&pair] = pair.events_[0].tensor;
    for (int i = 1; i <= 5; ++i) pair.Want(i);
  });
  ExpectQuiet(kSecond / 5, "the peer lives");
  Each([&](Pair& pair) {
    const std::vector<TransportEvent>& events = pair.events_;
    pair.peer_->KillOnly();
    ASSERT_TRUE(pair.PumpUntilEvents(7, 5 * kSecond)) << "the death of a peer must be seen within 5 s";
    EXPECT_EQ(events[1].kind, Kind::kPeerFailed);
    EXPECT_EQ(events[1].peer, kPeer);
    EXPECT_EQ(events[1].status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(events[1].status.message()), ::testing::HasSubstr(pair.label_));
    for (int i = 1; i <= 5; ++i) {
      EXPECT_EQ(events[i + 1].kind, Kind::kWantFailed);
      EXPECT_EQ(events[i + 1].key, Key(i));
      EXPECT_THAT(std::string(events[i + 1].status.message()), ::testing::HasSubstr(pair.label_));
    }
    pair.Want(6);
    ASSERT_TRUE(pair.PumpUntilEvents(8));
    EXPECT_EQ(events[7].kind, Kind::kWantFailed);
  });
  ExpectQuiet(3 * kSecond, "reported twice");
  Each([&](Pair& pair) {
    EXPECT_TRUE(pair.Holds(kept[&pair], 0)) << "what arrived outlives its producer";
    const pid_t pid = pair.peer_->pid();
    pair.peer_.reset();
    EXPECT_EQ(NamesInShm(), pair.shm_before_);
    pair.transport_->Close(MonotonicNow() + kSecond);
    pair.transport_.reset();
    EXPECT_EQ(SysvSegmentsOf(pid), 0);
  });
}

TEST_P(TransportProcess, Kill_WhileBytesAreOnTheirWay_EndsEveryWant) {
  constexpr int kCount = 8;
  Start(32'000'000, kCount);
  for (int i = 0; i < kCount; ++i) Want(i);
  ASSERT_TRUE(PumpUntilEvents(1));
  peer_->KillOnly();
  // Each want ends: what was complete has arrived, the rest has failed.
  ASSERT_TRUE(PumpUntil(
      [&] {
        return std::count_if(events_.begin(), events_.end(),
                             [](const auto& e) { return e.kind != Kind::kPeerFailed; }) == kCount;
      },
      10 * kSecond));
  ASSERT_TRUE(PumpUntil(
      [&] {
        return std::any_of(events_.begin(), events_.end(),
                           [](const auto& e) { return e.kind == Kind::kPeerFailed; });
      },
      5 * kSecond));
  std::set<TensorKey> keys;
  for (const TransportEvent& event : events_) {
    if (event.kind == Kind::kPeerFailed) continue;
    EXPECT_TRUE(keys.insert(event.key).second);
    if (event.kind == Kind::kArrived) {
      EXPECT_TRUE(Holds(event.tensor, event.key.step));
    }
  }
  transport_->Close(MonotonicNow() + kSecond);
}

TEST_F(TransportProcesses, Stop_OfThePeer_IsNoDeathAndItGoesOnLater) {
  Start(1000, 2);
  Each([](Pair& pair) {
    pair.Want(0);
    ASSERT_TRUE(pair.PumpUntilEvents(1));
    pair.peer_->Signal(SIGSTOP);
    pair.Want(1);
  });
  ExpectQuiet(4 * kSecond, "the peer is stopped");
  Each([](Pair& pair) {
    pair.peer_->Signal(SIGCONT);
    ASSERT_TRUE(pair.PumpUntilEvents(2));
    EXPECT_EQ(pair.events_[1].kind, Kind::kArrived);
    pair.transport_->Offer(kPeer, Key(kStopStep), Tensor{});
    pair.events_.clear();
    pair.Want(2);
    ASSERT_TRUE(pair.PumpUntilEvents(1));
    EXPECT_THAT(std::string(pair.events_[0].status.message()),
                ::testing::HasSubstr("has closed its connections"));
    pair.transport_->Close(MonotonicNow() + 5 * kSecond);
    EXPECT_EQ(pair.peer_->WaitForExit(), 0);
  });
}

TEST_P(TransportProcess, Kill_OfTheConsumer_GivesTheProducerItsMemoryBack) {
  Start(1000, 1);
  int released = 0;
  // The peer wants only the stop notice; hand it that as a tensor, which it will hold when it is stopped.
  peer_->Signal(SIGSTOP);
  transport_->Offer(kPeer, Key(kStopStep),
                    mode_.carried ? testing::MakeDeviceTensor(*device_, 4'000'000, 1, &released)
                                  : testing::MakeTensor(transport_->memory(), 4'000'000, 1, &released));
  EXPECT_FALSE(PumpUntil([&] { return released > 0; }, kSecond / 5));
  EXPECT_EQ(transport_->bytes_held(), 4'000'000u);
  peer_->KillOnly();
  EXPECT_TRUE(PumpUntil([&] { return released == 1; }, 10 * kSecond));
  EXPECT_EQ(transport_->bytes_held(), 0u);
  transport_->Close(MonotonicNow() + 5 * kSecond);
}

TEST_P(TransportProcess, Connect_ToADeadProcess_IsUnavailable) {
  Start(1000, 1);
  PeerProcess other(1000, 1, GetParam().environment, GetParam().device);
  const std::string address = other.ReadAddress();
  other.KillOnly();
  const absl::Status status = transport_->Connect(7, address, "process 7");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("process 7"));
  transport_->Close(MonotonicNow());
}

// A device of the host's memory that counts its segments.
class CountingDevice final : public TestDevice, private MemorySource {
 public:
  std::string kind() const override { return "host"; }
  MemorySource& memory() override { return *this; }
  void Write(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void Read(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  int segments = 0;

 private:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    ++segments;
    return memory_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override { memory_.Free(segment, bytes); }
  PlainMemory memory_;
};

// A producer that stops, and later dies, in the middle of a large tensor of a device. The memory into which
// that comes must not be given to another tensor while bytes may still be written there.
TEST_F(ProcessPair, Kill_InTheMiddleOfATensor_KeepsItsMemoryUntilTheCarrierIsDone) {
  constexpr size_t kBytes = 64'000'000;
  constexpr PeerId kOther = 3;
  auto device = std::make_unique<CountingDevice>();
  int& segments = device->segments;
  device_ = std::move(device);
  Start({"", false, {{"UCX_TLS", "tcp"}}, "host", true}, kBytes, 2);
  Want(0);
  Want(1);
  ASSERT_TRUE(PumpUntil([&] { return segments > 0; }));
  peer_->Signal(SIGSTOP);
  ASSERT_FALSE(PumpUntilEvents(1, kSecond)) << "it was not in the middle of a tensor";
  transport_->Cancel(Key(0));
  const int held = segments;  // one or two: the second tensor may have begun, too

  const std::unique_ptr<PeerProcess> other = StartPeer(kOther, kBytes, 5);
  transport_->Want(kOther, Key(2));
  ASSERT_TRUE(PumpUntilEvents(1));
  ASSERT_EQ(events_[0].kind, Kind::kArrived);
  EXPECT_EQ(segments, held + 1) << "memory was used again that a stopped peer may still write";
  EXPECT_TRUE(Holds(events_[0].tensor, 2));

  peer_->KillOnly();
  ASSERT_TRUE(PumpUntilEvents(3));
  // UCX may notice first, at the tensor on its way, or the end of the process is seen.
  const bool want_first = events_[1].kind == Kind::kWantFailed;
  const TransportEvent &want = events_[want_first ? 1 : 2], &peer = events_[want_first ? 2 : 1];
  EXPECT_EQ(peer.kind, Kind::kPeerFailed);
  EXPECT_EQ(peer.peer, kPeer);
  EXPECT_EQ(want.kind, Kind::kWantFailed);
  EXPECT_EQ(want.key, Key(1));
  for (const TransportEvent* event : {&want, &peer}) {
    EXPECT_THAT(std::string(event->status.message()), ::testing::HasSubstr(label_));
  }
  // The carrier ends what it had begun when the connection is closed, and the memory serves others.
  ASSERT_FALSE(PumpUntilEvents(4, 2 * kSecond));
  transport_->Want(kOther, Key(3));
  ASSERT_TRUE(PumpUntilEvents(4));
  ASSERT_EQ(events_[3].kind, Kind::kArrived);
  EXPECT_EQ(segments, held + 1) << "the memory of a cut tensor was lost";
  EXPECT_TRUE(Holds(events_[3].tensor, 3));
  EXPECT_TRUE(Holds(events_[0].tensor, 2));
  transport_->Close(MonotonicNow() + kSecond);
}

}  // namespace
}  // namespace weft::transport_process_test
