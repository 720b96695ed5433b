// The HTTP server of metrics and health, against clients that are slow, silent or wrong.
#include "base/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::metrics_server_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    metrics_.AddCounter("weft_things_total", "Things.").Add(3);
    server_ = *MetricsServer::Start("127.0.0.1:0", &metrics_, {}, [this] { return problem_; });
  }
  ~MetricsServerTest() override {
    for (const int fd : open_) close(fd);
  }

  int Connect() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(server_->port()));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof(a)), 0);
    const timeval patience{60, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    open_.push_back(fd);
    return fd;
  }
  static void Say(int fd, const std::string& text) {
    EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Reads until the server closes the connection.
  static std::string Rest(int fd) {
    std::string all;
    char piece[4096];
    for (ssize_t n; (n = recv(fd, piece, sizeof(piece), 0)) > 0;) all.append(piece, static_cast<size_t>(n));
    return all;
  }
  std::string Ask(const std::string& path) {
    const int fd = Connect();
    Say(fd, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"));
    return Rest(fd);
  }

  Metrics metrics_;
  std::string problem_;
  std::vector<int> open_;
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, Requests_AreAnsweredAndTheConnectionIsClosed) {
  EXPECT_THAT(Ask("/metrics"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Connection: close"),
                                     HasSubstr("weft_things_total 3")));
  EXPECT_THAT(Ask("/healthz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nok\n")));
  EXPECT_THAT(Ask("/nothing"), StartsWith("HTTP/1.1 404"));
  problem_ = "the loop has not turned for 12 s";
  EXPECT_THAT(Ask("/healthz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr(problem_)));
}

// Each kind of slow client, more of them than there are places. A thread a connection would keep the probe
// waiting.
TEST_F(MetricsServerTest, SlowClients_DoNotKeepAProbeWaiting) {
  std::vector<int> trickling;
  int outlived = 0;
  for (int i = 0; i < 300; ++i) {
    const int fd = Connect();
    if (i % 3 == 0) Say(fd, "GET /metrics HT");
    if (i % 3 == 1) Say(fd, "GET /metrics HTTP/1.1\r\nX: ");
  }
  trickling.assign(open_.end() - 30, open_.end());
  for (int i = 0; i < 20; ++i) {
    const int slow = Connect();
    Say(slow, "GET /metrics HT");
    for (const int fd : trickling) send(fd, "a", 1, MSG_NOSIGNAL);
    EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(Ask("/metrics"), StartsWith("HTTP/1.1 200"));
    char end;
    outlived += recv(slow, &end, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  EXPECT_GT(outlived, 0) << "each probe waited until the slow client before it was ended";
}

TEST_F(MetricsServerTest, RequestThatTakesTooLong_IsEnded) {
  const int fd = Connect();
  Say(fd, "GET /metrics HT");
  EXPECT_EQ(Rest(fd), "");
}

TEST_F(MetricsServerTest, Nonsense_IsRefusedAndTheServerGoesOn) {
  const std::string nonsense[] = {std::string(100'000, 'x'), "\r\n\r\n", "GET\r\n\r\n",
                                  absl::StrCat(std::string(100, '\0'), "\r\n\r\n"),
                                  "POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\nabc"};
  for (const std::string& text : nonsense) {
    const int fd = Connect();
    send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    EXPECT_THAT(Rest(fd), ::testing::Not(StartsWith("HTTP/1.1 200")));
  }
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace weft::metrics_server_test
