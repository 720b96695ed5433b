// Runs an etcd server for a test, on the loopback with its data in a folder of its own.
#ifndef WEFT_TESTS_PROCESS_ETCD_SERVER_H_
#define WEFT_TESTS_PROCESS_ETCD_SERVER_H_

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/process/command.h"
#include "tests/process/free_ports.h"

namespace weft {

class EtcdServer {
 public:
  // Starts it, and waits until it serves. With a folder of certificates it serves clients of the same
  // authority alone. Returns false if it does not serve.
  bool Start(const std::string& tls = "") {
    if (!std::filesystem::exists(kProgram)) return false;
    const std::string clients = absl::StrCat(tls.empty() ? "http" : "https", "://127.0.0.1:", port_);
    const std::string peers = absl::StrCat("http://127.0.0.1:", port_ + 1);
    std::vector<std::string> words = {kProgram,
                                      "--data-dir",
                                      folder_ / "data",
                                      "--listen-client-urls",
                                      clients,
                                      "--advertise-client-urls",
                                      clients,
                                      "--listen-peer-urls",
                                      peers,
                                      "--initial-advertise-peer-urls",
                                      peers,
                                      "--initial-cluster",
                                      absl::StrCat("default=", peers)};
    if (!tls.empty()) {
      words.insert(words.end(), {"--client-cert-auth", "--trusted-ca-file", tls + "/ca.crt", "--cert-file",
                                 tls + "/tls.crt", "--key-file", tls + "/tls.key"});
    }
    process_ = std::make_unique<Command>(words);
    return process_->WaitFor("ready to serve client requests", 60);
  }
  void Signal(int signal) const { process_->Signal(signal); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  static constexpr char kMissing[] = "etcd does not start; Debian has it in the package etcd-server";

 private:
  static constexpr char kProgram[] = "/usr/bin/etcd";

  const TestFolder folder_;
  const int port_ = FreePorts(2);
  std::unique_ptr<Command> process_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_ETCD_SERVER_H_
