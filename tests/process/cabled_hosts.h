// Two hosts, as far as the network sees: namespaces of this machine, joined by one cable, `weft0` on both.
// They have the addresses 10.77.0.1 and 10.77.0.2, and, where a command asks for it, names and monotonic
// clocks of their own, as two machines have. Needs root; a test that gets no hosts skips loudly.
#ifndef WEFT_TESTS_PROCESS_CABLED_HOSTS_H_
#define WEFT_TESTS_PROCESS_CABLED_HOSTS_H_

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/process/command.h"

namespace weft {

class CabledHosts {
 public:
  static constexpr char kInterface[] = "weft0";

  CabledHosts() {
    for (std::string& name : names_) name += std::to_string(getpid());
  }
  ~CabledHosts() {
    for (const std::string& name : names_) Ip({"netns", "del", name});
  }
  CabledHosts(const CabledHosts&) = delete;
  CabledHosts& operator=(const CabledHosts&) = delete;

  // Makes them. Returns "", or why a test cannot have them.
  std::string Make() {
    if (geteuid() != 0) return "NOT TESTED: network namespaces need root";
    const std::string a = names_[0], b = names_[1];
    bool works = Ip({"netns", "add", a}) && Ip({"netns", "add", b});
    works = works && Ip({"link", "add", kInterface, "netns", a, "type", "veth", "peer", "name", kInterface,
                         "netns", b});
    for (int host = 0; host < 2; ++host) {
      works = works && AddAddress(host, Address(host)) &&
              Ip({"-n", names_[host], "link", "set", kInterface, "up"}) &&
              Ip({"-n", names_[host], "link", "set", "lo", "up"});
    }
    works = works && AwaitCarrier(0) && AwaitCarrier(1);
    std::vector<std::string> nothing = OnMachine(1);
    nothing.emplace_back("/bin/true");
    works = works && Command::Run(nothing).code == 0;
    return works ? "" : "NOT TESTED: network namespaces cannot be made here";
  }

  static std::string Address(int host) { return "10.77.0." + std::to_string(host + 1); }
  bool AddAddress(int host, const std::string& address) const {
    return Ip({"-n", names_[host], "addr", "add", address + "/24", "dev", kInterface});
  }
  // Pulls the cable out, or puts it in.
  bool SetCable(bool in) const {
    return Ip({"-n", names_[1], "link", "set", kInterface, in ? "up" : "down"});
  }
  // Lets no more than that through the cable, as "16mbit", in each direction.
  bool SetRate(const std::string& rate) const {
    bool works = true;
    for (const std::string& name : names_) {
      const CommandResult set =
          Command::Run({"/usr/bin/env", "tc", "-n", name, "qdisc", "replace", "dev", kInterface, "root",
                        "tbf", "rate", rate, "burst", "32kb", "limit", "16mb"});
      works = works && set.code == 0;
    }
    return works;
  }
  const std::string& name(int host) const { return names_[host]; }
  // Returns the words in front of a command that runs it on the host.
  std::vector<std::string> On(int host) const {
    return {"/usr/bin/env", "ip", "netns", "exec", names_[host]};
  }
  // Likewise, with the host's own name, machine0 or machine1, and its own clock, which began at another time.
  std::vector<std::string> OnMachine(int host) const {
    std::vector<std::string> words = On(host);
    const std::string name = "machine" + std::to_string(host), begin = std::to_string(host * 500'000);
    words.insert(words.end(), {"unshare", "--uts", "--time", "--monotonic", begin, "/bin/sh", "-c",
                               "hostname " + name + " && exec \"$@\"", "sh"});
    return words;
  }

 private:
  static bool Ip(std::vector<std::string> arguments) { return RunIp(std::move(arguments)).code == 0; }
  static CommandResult RunIp(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"/usr/bin/env", "ip"});
    return Command::Run(arguments);
  }
  // The kernel reports the carrier of a new cable up to a second late. UCX, which looks once, leaves out an
  // interface that has none yet.
  bool AwaitCarrier(int host) const {
    for (int i = 0; i < 100; ++i) {
      const CommandResult link = RunIp({"-n", names_[host], "-o", "link", "show", kInterface});
      if (link.out.find("state UP") != std::string::npos) return true;
      usleep(50'000);
    }
    return false;
  }

  std::string names_[2] = {"weft-a-", "weft-b-"};
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_CABLED_HOSTS_H_
