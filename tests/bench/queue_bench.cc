// A long queue in the real weft-coordinator, with a store and without workers:
//   - the time of submitting runs one behind the other, of the first tenth and of the last, and the time of
//     the coordinator's processor for it: both must not grow with the runs that wait already
//   - the time of `weft ls`, of the status page and of the metrics with all of them in the queue
//   - the time until a coordinator that is started again answers `weft ls` with all of them
//
//   queue_bench BIN_DIR [runs] [clients]
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "tests/bench/coordinator_process.h"
#include "tests/test_folder.h"

namespace weft {
namespace {

double SecondsSince(int64_t began) { return static_cast<double>(MonotonicNow() - began) * 1e-9; }

// Submits so many runs, and returns the seconds that it took.
double Submit(const CoordinatorProcess& coordinator, int runs, int clients) {
  const std::string spec = GptRunJson(4, 4, 10, "queued");
  std::atomic<int> left{runs};
  const int64_t began = MonotonicNow();
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      const std::unique_ptr<RunsClient> client = coordinator.Client();
      while (left.fetch_sub(1) > 0) {
        const absl::StatusOr<uint64_t> run = client->Submit({"", spec, 1, ""});
        if (!run.ok()) EndBench(absl::StrCat("not submitted: ", run.status().ToString()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return SecondsSince(began);
}

double ChildrenCpuSeconds() {
  rusage used;
  getrusage(RUSAGE_CHILDREN, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

// Returns the lines that a command writes, and how long it took. -1 for a command that fails.
std::pair<int, double> Lines(const std::string& command) {
  const int64_t began = MonotonicNow();
  FILE* const out = popen(command.c_str(), "r");
  int lines = 0;
  for (int c = fgetc(out); c != EOF; c = fgetc(out)) lines += c == '\n' ? 1 : 0;
  return {pclose(out) == 0 ? lines : -1, SecondsSince(began)};
}

// Reads a page whole, and returns its bytes and the seconds that it took.
std::pair<size_t, double> Page(int port, const std::string& path) {
  const int64_t began = MonotonicNow();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) EndBench("no status page");
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n");
  if (write(fd, request.data(), request.size()) < 0) EndBench("the status page does not listen");
  size_t bytes = 0;
  char buffer[65536];
  for (ssize_t n = read(fd, buffer, sizeof(buffer)); n > 0; n = read(fd, buffer, sizeof(buffer))) bytes += n;
  close(fd);
  return {bytes, SecondsSince(began)};
}

void ShowQuestions(const std::string& bin, const CoordinatorProcess& coordinator) {
  const std::string weft = absl::StrCat(bin, "/weft ls --coordinator ", coordinator.socket());
  std::vector<double> seconds;
  int lines = 0;
  const double cpu = ChildrenCpuSeconds(), coordinators = coordinator.CpuSeconds();
  for (int i = 0; i < 5; ++i) {
    const auto [count, time] = Lines(weft);
    lines = count;
    seconds.push_back(time);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "weft ls: %d lines, %.2f s (%.2f to %.2f of 5), %.2f s of its processor, %.2f s of the coordinator's\n",
      lines, seconds[2], seconds[0], seconds[4], (ChildrenCpuSeconds() - cpu) / 5,
      (coordinator.CpuSeconds() - coordinators) / 5);
  std::printf("weft ls -o json: %.2f s\n", Lines(weft + " -o json").second);
  for (const char* path : {"/", "/status.json", "/metrics"}) {
    const auto [bytes, time] = Page(coordinator.metrics_port(), path);
    std::printf("GET %s: %.1f KiB, %.3f s\n", path, static_cast<double>(bytes) / 1024, time);
  }
}

int Main(const std::string& bin, int runs, int clients) {
  const TestFolder folder;
  CoordinatorProcess first(bin, folder.path());
  const double before = first.ResidentMiB();
  const int tenth = std::max(1, runs / 10);
  for (int part = 0; part < 10; ++part) {
    const double cpu = first.CpuSeconds();
    const double seconds = Submit(first, tenth, clients);
    std::printf("runs %d to %d: %.2f ms a run, %.2f ms of the coordinator's processor\n", part * tenth + 1,
                (part + 1) * tenth, seconds / tenth * 1e3, (first.CpuSeconds() - cpu) / tenth * 1e3);
    std::fflush(stdout);
  }
  std::printf("resident: %.0f MiB before, %.0f MiB with %d runs; %d descriptors\n", before,
              first.ResidentMiB(), tenth * 10, first.Descriptors());
  ShowQuestions(bin, first);
  const int64_t stopping = MonotonicNow();
  const int code = first.End(SIGTERM);
  std::printf("SIGTERM: exit code %d after %.2f s\n", code, SecondsSince(stopping));
  const int64_t starting = MonotonicNow();
  CoordinatorProcess second(bin, folder.path());
  const auto listed = second.Client()->List();
  std::printf("started again: %zu runs listed after %.2f s, %.2f s of the processor\n",
              listed.ok() ? listed->size() : 0, SecondsSince(starting), second.CpuSeconds());
  ShowQuestions(bin, second);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc < 2) weft::EndBench("usage: queue_bench BIN_DIR [runs] [clients]");
  return weft::Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 10'000, argc > 3 ? std::atoi(argv[3]) : 8);
}
