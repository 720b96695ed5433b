// Runs a TCP proxy on loopback that forwards to an address and breaks all its connections when told to. It
// has one thread; the kernel bounds its buffers.
#ifndef WEFT_TESTS_PROCESS_BREAKING_PROXY_H_
#define WEFT_TESTS_PROCESS_BREAKING_PROXY_H_

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace weft {

class BreakingProxy {
 public:
  explicit BreakingProxy(int target_port) : target_port_(target_port) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a = Loopback(0);
    socklen_t size = sizeof(a);
    const bool listens =
        bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof(a)) == 0 && listen(listener_, 16) == 0;
    if (!listens) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size);
    port_ = ntohs(a.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~BreakingProxy() {
    stop_ = true;
    thread_.join();
    close(listener_);
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Break() { break_ = true; }
  // Refuses new connections too, until told otherwise.
  void SetDown(bool down) { down_ = down; }
  int broken() const { return broken_; }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(port));
    return a;
  }

  void Run() {
    while (!stop_) {
      if (break_.exchange(false) || down_) CloseAll();
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const auto& [a, b] : pairs_) fds.insert(fds.end(), {{a, POLLIN, 0}, {b, POLLIN, 0}});
      poll(fds.data(), fds.size(), 1);
      for (size_t i = 1; i < fds.size(); ++i) {
        if (fds[i].revents != 0 && !Forward(fds[i].fd, fds[i % 2 == 1 ? i + 1 : i - 1].fd)) {
          CloseAll();
          break;
        }
      }
      if (fds[0].revents & POLLIN) Accept();
    }
    CloseAll();
  }
  void Accept() {
    const int a = accept(listener_, nullptr, nullptr);
    if (down_) {
      close(a);
      return;
    }
    const int b = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = Loopback(target_port_);
    // A target that does not listen ends the pair like one that hangs up.
    [[maybe_unused]] const int connected = connect(b, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    for (int fd : {a, b}) {
      const int yes = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    }
    pairs_.emplace_back(a, b);
  }
  static bool Forward(int from, int to) {
    char buffer[65536];
    const ssize_t n = read(from, buffer, sizeof(buffer));
    for (ssize_t done = 0; done < n;) {
      const ssize_t w = send(to, buffer + done, n - done, MSG_NOSIGNAL);
      if (w <= 0) return false;
      done += w;
    }
    return n > 0;
  }
  void CloseAll() {
    broken_ += !pairs_.empty();
    for (const auto& [a, b] : pairs_) close(a), close(b);
    pairs_.clear();
  }

  const int target_port_;
  int listener_ = -1, port_ = 0;
  std::vector<std::pair<int, int>> pairs_;
  std::atomic<bool> stop_{false}, break_{false}, down_{false};
  std::atomic<int> broken_{0};
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_BREAKING_PROXY_H_
