// Finds ports for the servers of a test.
#ifndef WEFT_TESTS_PROCESS_FREE_PORTS_H_
#define WEFT_TESTS_PROCESS_FREE_PORTS_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

namespace weft {

// Returns a port of the loopback that is free at this moment, and the next ones too, `count` in all; 0 for
// none. They lie below the ports that Linux gives to outgoing connections (32768 and up). They begin at
// random, so that tests side by side do not take each other's.
inline int FreePorts(int count) {
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const int port = 20000 + static_cast<int>(random() % 12000);
    bool free = true;
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in a{};
      a.sin_family = AF_INET;
      a.sin_port = htons(static_cast<uint16_t>(port + i));
      a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      free = free && bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
      close(fd);
    }
    if (free) return port;
  }
  return 0;
}

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_FREE_PORTS_H_
