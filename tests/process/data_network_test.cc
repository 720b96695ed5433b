// The data plane of real workers over TCP: who may connect to it, and what happens when it carries nothing.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/cabled_hosts.h"
#include "tests/process/checkpoint_tensors.h"
#include "tests/process/command.h"
#include "tests/process/eventually.h"
#include "tests/process/run_files.h"
#include "tests/process/slowed_process.h"

namespace weft::data_network_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Returns the addresses at which the process accepts TCP connections of IPv4.
std::vector<sockaddr_in> TcpPorts(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> own;
  for (const auto& entry : fs::directory_iterator(process + "/fd")) {
    std::error_code gone;
    own.insert(fs::read_symlink(entry.path(), gone).string());
  }
  std::vector<sockaddr_in> ports;
  std::ifstream file(process + "/net/tcp");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::vector<std::string> field(10);
    for (std::string& f : field) fields >> f;
    if (field[3] != "0A" || own.count("socket:[" + field[9] + "]") == 0) continue;
    sockaddr_in name{};
    name.sin_family = AF_INET;
    unsigned address = 0, port = 0;
    std::sscanf(field[1].c_str(), "%x:%x", &address, &port);
    name.sin_addr.s_addr = address;
    name.sin_port = htons(static_cast<uint16_t>(port));
    ports.push_back(name);
  }
  return ports;
}

// Returns what a program of UCX would send first, by its TCP transport, and then a message that ends UCX:
// 16 zero bytes for one of its own handlers.
std::string EndingMessage(const sockaddr_in& from) {
  std::string bytes;
  const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  constexpr uint8_t kConnectionMessage = 32, kHandler = 12;
  put(uint64_t{0xCAFEBABE12345678});
  put(kConnectionMessage);
  put(uint32_t{4 + 1 + 8 + sizeof from});
  put(uint32_t{1});  // a request to connect
  put(uint8_t{0});
  put(uint64_t{0});
  put(from);
  put(kHandler);
  put(uint32_t{16});
  return bytes + std::string(16, '\0');
}

// Sends the message from the address; returns false if the port does not answer.
bool Attack(const sockaddr_in& port, const char* from) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  inet_pton(AF_INET, from, &own.sin_addr);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own), 0) << from;
  [[maybe_unused]] const int begun = connect(fd, reinterpret_cast<const sockaddr*>(&port), sizeof port);
  constexpr int kMilliseconds = 500;
  pollfd ready{fd, POLLOUT, 0};
  const bool connected = poll(&ready, 1, kMilliseconds) == 1 && (ready.revents & POLLERR) == 0;
  const std::string message = EndingMessage(own);
  const bool sent = connected && send(fd, message.data(), message.size(), MSG_NOSIGNAL) ==
                                     static_cast<ssize_t>(message.size());
  if (sent) {  // until UCX has read it
    char answer;
    ready.events = POLLIN;
    poll(&ready, 1, kMilliseconds);
    while (recv(fd, &answer, 1, 0) == 1) continue;
  }
  close(fd);
  return sent;
}

// The other end of a data link as the process has it: both descriptors are of one socket.
class StolenLinks {
 public:
  explicit StolenLinks(pid_t pid) {
    const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      const int fd = std::stoi(entry.path().filename().string());
      const int own = static_cast<int>(syscall(SYS_pidfd_getfd, process, fd, 0));
      if (own < 0) continue;
      int domain = 0, accepts = 0;
      socklen_t bytes = sizeof domain;
      const bool is_link = getsockopt(own, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 &&
                           domain == AF_INET &&
                           getsockopt(own, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &bytes) == 0 && accepts == 0;
      is_link ? static_cast<void>(links_.push_back(own)) : static_cast<void>(close(own));
    }
    close(process);
  }
  ~StolenLinks() {
    for (const int fd : links_) close(fd);
  }
  size_t size() const { return links_.size(); }
  // Lets no packet through any more.
  void Cut() const {
    sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog program{1, &drop};
    for (const int fd : links_)
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  }
  void Mend() const {
    const int none = 0;
    for (const int fd : links_)
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none), 0);
  }

 private:
  std::vector<int> links_;
};

// The longest silence of a data link, in seconds: short for the tests whose links stay silent. TCP sends
// again after 0.2, 0.4, 0.8 .. s, so a link that is mended after 5 to 12 s carries something after 13 to 25
// s.
constexpr int kShortSilence = 10, kLongSilence = 60;

constexpr char kLostLink[] =
    "process [01] .w[01], pid [0-9]+ on host .*. is lost: its data link .tcp. has carried nothing for 10 s; "
    "awaited: .*step [0-9]+, stage [0-9]";

class DataNetwork : public ::testing::Test {
 protected:
  DataNetwork() : address_("unix:" + (folder_ / "coordinator.sock")) {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path()});
    EXPECT_TRUE(coordinator_->WaitFor("listening on", 60));
  }

  // Starts a worker whose tensors go by TCP of the interface alone, though its peers are on this machine.
  Command& StartWorker(const std::string& interface, const std::vector<std::string>& within = {}) {
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", interface.c_str(), 1);
    return StartWith({}, within);
  }
  // Starts a worker whose tensors go over TLS.
  Command& StartTlsWorker() {
    setenv("WEFT_SHARED_MEMORY", "0", 1);
    return StartWith({"--tls", folder_ / "certs/worker", "--data-network", "lo"}, {});
  }
  Command& StartWith(const std::vector<std::string>& flags, const std::vector<std::string>& within) {
    setenv("WEFT_IN_PLACE", "0", 1);
    const std::string name = "w" + std::to_string(workers_.size());
    std::vector<std::string> arguments = within;
    const std::string program = std::string(std::getenv("WEFT_BIN")) + "/weft-worker";
    arguments.insert(arguments.end(), {program, "--coordinator", address_, "--name", name, "--link-timeout",
                                       std::to_string(longest_silence_)});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    workers_.push_back(std::make_unique<Command>(arguments));
    EXPECT_TRUE(coordinator_->WaitFor(name + ", pid", 60));
    return *workers_.back();
  }

  CommandResult Weft(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "weft");
    arguments.insert(arguments.end(), {"--coordinator", address_});
    return Command::Run(arguments, 120);
  }
  // Starts two workers of this machine and an endless run, and takes the ends of the first one's data links.
  std::unique_ptr<StolenLinks> StartAndTakeLinks(int longest_silence) {
    longest_silence_ = longest_silence;
    StartWorker("lo");
    StartWorker("lo");
    StartEndlessRun();
    auto links = std::make_unique<StolenLinks>(workers_[0]->pid());
    EXPECT_GT(links->size(), 0u) << "else this test cuts nothing";
    return links;
  }
  // Starts a run of two processes that does not end by itself, and waits for its first steps.
  void StartEndlessRun() {
    const std::string file = WriteSmallRun(
        folder_,
        {{"train", "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, optimizer: {sgd: {lr: 0.01}}}"},
         {"restarts", std::to_string(restarts_)}});
    ASSERT_EQ(Weft({"submit", file, "--processes", "2", "--out", folder_ / "out", "--detach"}).code, 0);
    ASSERT_TRUE(StepsPass());
  }
  int64_t Steps() const {
    const Json run = Json::parse(Weft({"describe", "1", "-o", "json"}).out, nullptr, false);
    return run.is_object() && run.contains("steps_done") ? run["steps_done"].get<int64_t>() : -1;
  }
  std::string Reason() const {
    return Json::parse(Weft({"describe", "1", "-o", "json"}).out)["reason"].get<std::string>();
  }
  int Restarts() const { return Json::parse(Weft({"describe", "1", "-o", "json"}).out).value("restarts", 0); }
  static bool Eventually(const std::function<bool()>& done) { return weft::Eventually(done, 120); }
  // Starts a worker in the place of each that has ended, as a supervisor does.
  void ReplaceEnded(const std::function<void()>& start) {
    for (std::unique_ptr<Command>& worker : workers_) {
      if (worker == nullptr || !HasEnded(worker->pid())) continue;
      EXPECT_EQ(worker->Wait(60).code, 69);
      worker.reset();
      start();
      return;  // workers_ has grown
    }
  }
  // Returns a number of steps that the run has not made when its links are cut: the last describe may be old.
  int64_t MoreSteps() const { return Steps() + 100; }
  // Returns true once the run has made steps that it had not made when this was called.
  bool StepsPass() const {
    const int64_t before = Steps();
    return Eventually([&] { return Steps() > std::max<int64_t>(before, 0); });
  }

  const TestFolder folder_;
  const std::string address_;
  int longest_silence_ = kShortSilence;
  int restarts_ = 0;  // of the run file
  std::unique_ptr<Command> coordinator_;
  std::vector<std::unique_ptr<Command>> workers_;
};

TEST_F(DataNetwork, MessageOfAStrangerThatEndsUcx_DoesNotReachAWorker) {
  StartWorker("lo");
  StartWorker("lo");
  const auto attack_all = [&](const char* from) {
    int reached = 0;
    for (const auto& worker : workers_) {
      const std::vector<sockaddr_in> ports = TcpPorts(worker->pid());
      EXPECT_FALSE(ports.empty()) << "else this test attacks nothing";
      for (const sockaddr_in& port : ports) reached += Attack(port, from) ? 1 : 0;
    }
    return reached;
  };
  // Before its first run a worker knows no peer.
  EXPECT_EQ(attack_all("127.0.0.1"), 0);
  StartEndlessRun();
  EXPECT_EQ(attack_all("127.0.0.2"), 0);
  EXPECT_TRUE(StepsPass());
  // From a peer's machine it can be sent, and then it does end a worker.
  EXPECT_GT(attack_all("127.0.0.1"), 0);
  const CommandResult end = workers_[0]->Wait(60);
  EXPECT_EQ(end.signal, SIGSEGV) << "else the message of this test ends no worker: " << end.err;
}

// The message that ends a worker whose port is UCX's (above) is, over TLS, only a handshake that fails.
TEST_F(DataNetwork, MessageOfAStrangerToAPortOfTls_HarmsNobodyFromAnyAddress) {
  ASSERT_EQ(Command::Run({"weft", "certs", "init", folder_ / "certs"}).code, 0);
  StartTlsWorker();
  StartTlsWorker();
  StartEndlessRun();
  EXPECT_TRUE(workers_[0]->WaitFor("host memory by tls", 60));
  for (const auto& worker : workers_) {
    const std::vector<sockaddr_in> ports = TcpPorts(worker->pid());
    EXPECT_FALSE(ports.empty()) << "else this test attacks nothing";
    for (const sockaddr_in& port : ports) {
      for (const char* from : {"127.0.0.1", "127.0.0.2"}) EXPECT_TRUE(Attack(port, from)) << from;
    }
  }
  EXPECT_TRUE(workers_[0]->WaitFor("a connection to the data plane from 127.0.0.1 is refused", 60));
  EXPECT_TRUE(StepsPass());
  EXPECT_EQ(Restarts(), 0);
}

TEST_F(DataNetwork, LinkCarriesNothingForSeconds_ItIsReportedAndTheRunGoesOn) {
  const auto links = StartAndTakeLinks(kLongSilence);
  links->Cut();
  EXPECT_TRUE(Eventually([&] {
    return Weft({"describe", "1"}).out.find("has been silent for") != std::string::npos;
  }));
  links->Mend();
  EXPECT_TRUE(StepsPass());
  EXPECT_EQ(Json::parse(Weft({"describe", "1", "-o", "json"}).out)["state"], "running");
}

TEST_F(DataNetwork, LinkCarriesNothing_TheRunFailsAndNamesProcessAndTensor) {
  const auto links = StartAndTakeLinks(kShortSilence);
  links->Cut();
  EXPECT_EQ(Weft({"wait", "1"}).code, 1);
  EXPECT_THAT(Reason(), ContainsRegex(kLostLink));
}

TEST_F(DataNetwork, LinkCarriesNothing_TheRunBeginsAgainOverAnother) {
  restarts_ = 3;
  const auto links = StartAndTakeLinks(kShortSilence);
  links->Cut();
  const int64_t more = MoreSteps();
  EXPECT_TRUE(Eventually([&] {
    ReplaceEnded([&] { StartWorker("lo"); });
    return Restarts() > 0 && Steps() > more;
  })) << Weft({"describe", "1"}).out;
}

// Two machines. The second has a further address, a stranger's.
class TwoMachines : public DataNetwork {
 protected:
  static constexpr char kStranger[] = "10.77.0.3";

  void SetUp() override {
    const std::string missing = hosts_.Make();
    if (!missing.empty()) GTEST_SKIP() << missing;
    ASSERT_TRUE(hosts_.AddAddress(1, kStranger));
  }
  void TearDown() override { workers_.clear(); }

  Command& StartOn(int host) { return StartWorker(CabledHosts::kInterface, hosts_.On(host)); }
  // Does it on the host: a thread of its own is moved there.
  void On(int host, const std::function<void()>& work) const {
    std::thread([&] {
      const int space = open(("/run/netns/" + hosts_.name(host)).c_str(), O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(setns(space, CLONE_NEWNET), 0);
      close(space);
      work();
    }).join();
  }

  CabledHosts hosts_;
};

TEST_F(TwoMachines, PeersOfARun_ReachEachOtherAndAStrangerReachesNone) {
  StartOn(0);
  StartOn(1);
  StartEndlessRun();
  EXPECT_THAT(Weft({"workers"}).out, AllOf(HasSubstr("w0"), HasSubstr("w1")));
  const std::vector<sockaddr_in> ports = TcpPorts(workers_[0]->pid());
  ASSERT_FALSE(ports.empty());
  On(1, [&] {
    for (const sockaddr_in& port : ports) EXPECT_FALSE(Attack(port, kStranger));
  });
  EXPECT_TRUE(StepsPass());
}

TEST_F(TwoMachines, CableIsOut_TheRunFailsAndNamesProcessAndTensor) {
  StartOn(0);
  StartOn(1);
  StartEndlessRun();
  ASSERT_TRUE(hosts_.SetCable(false));
  EXPECT_EQ(Weft({"wait", "1"}).code, 1);
  EXPECT_THAT(Reason(), ContainsRegex(kLostLink));
}

TEST_F(TwoMachines, CableIsOutForLongerThanTheTimeout_TheRunGoesOnWhenItIsInAgain) {
  restarts_ = 3;
  StartOn(0);
  StartOn(1);
  StartEndlessRun();
  ASSERT_TRUE(hosts_.SetCable(false));
  const int64_t more = MoreSteps();
  EXPECT_TRUE(Eventually([&] { return Restarts() >= 1; }));
  ASSERT_TRUE(hosts_.SetCable(true));
  EXPECT_TRUE(Eventually([&] {
    ReplaceEnded([&] { StartOn(0); });
    return Steps() > more;
  })) << Weft({"describe", "1"}).out;
}

// Under data parallelism all gradients pass over the cable, and under a pipeline activations alone.
class SlowCable : public TwoMachines {
 protected:
  std::string WriteRun(int64_t steps) const {
    return WriteSmallRun(
        folder_,
        {{"model", "{gpt: {layers: 4, width: 64, heads: 4, context: 32}}"},
         {"train", absl::StrCat("{steps: ", steps,
                                ", batch: 16, microbatches: 4, seed: 1, optimizer: {sgd: {lr: 0.01}}}")},
         {"stages", "6"},
         {"schedule", "{ddp: {ranks: 2}}"},
         {"replan", "{gain: 20 %, steps: 100}"}});
  }
  // Returns the time of the run's steps until now.
  double TrainedSeconds() const {
    std::istringstream lines(ReadWholeFile(out_ + "/steps.jsonl"));
    double seconds = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json step = Json::parse(line, nullptr, false);
      if (step.is_object()) seconds += step.value("seconds", 0.0);
    }
    return seconds;
  }
  // Returns the step of the newest checkpoint in the run's folder; 0 if there is none.
  int64_t SavedStep() const {
    int64_t newest = 0;
    for (const auto& entry : std::filesystem::directory_iterator(out_)) {
      const std::string name = entry.path().filename();
      int64_t step = 0;
      if (name.starts_with("checkpoint-") && absl::SimpleAtoi(name.substr(name.find('-') + 1), &step))
        newest = std::max(newest, step);
    }
    return newest;
  }

  const std::string out_ = folder_ / "out";
};

TEST_F(SlowCable, CableBecomesSlow_TheRunMovesToAScheduleThatSendsLess) {
  // Else a rank is slow where others use the processor.
  const FavouredProcess first(StartOn(0).pid()), second(StartOn(1).pid());
  ASSERT_EQ(Weft({"submit", WriteRun(1'000'000), "--processes", "2", "--out", out_, "--detach"}).code, 0);
  // Behind the measurements with which links are compared, of which there is at most one a second.
  ASSERT_TRUE(Eventually([&] { return TrainedSeconds() > 6; })) << Weft({"describe", "1"}).out;
  if (!hosts_.SetRate("32mbit")) GTEST_SKIP() << "NOT TESTED: the rate of a cable cannot be set here";
  // It may have moved for a slow rank before, where others use the processor.
  const auto replans = [&] { return ReadWholeFile(out_ + "/replans.jsonl"); };
  EXPECT_TRUE(Eventually([&] {
    return replans().find("the link of ranks 0 and 1 takes ") != std::string::npos;
  })) << replans()
      << Weft({"logs", "1"}).out;
  const int64_t moved = Steps();
  EXPECT_TRUE(Eventually([&] { return Steps() > moved; })) << "it goes on under the other schedule";
  ASSERT_EQ(Weft({"cancel", "1", "--save"}).code, 0);
  EXPECT_EQ(Command::Run({"weft", "wait", "1", "--coordinator", address_}, 120).code, 1);
  const int64_t saved = SavedStep();
  ASSERT_GT(saved, moved);
  const std::string reference = folder_ / "reference";
  ASSERT_EQ(Command::Run({"weft", "train", WriteRun(saved), "--reference", "--out", reference}, 300).code, 0);
  EXPECT_TRUE(ReadTensors(absl::StrCat(out_, "/checkpoint-", saved)) ==
              ReadTensors(reference + "/checkpoint"))
      << "other bits";
}

}  // namespace
}  // namespace weft::data_network_test
