// The control plane over real sockets, coordinator and worker in two processes on this machine:
//   - the round trip of one job: completion sent to next job granted, one credit; p50, p99
//   - completions per second in a closed loop: 4096 credits, every grant completed at once
// over a unix socket and over TCP loopback. `blocking`: the worker's thread sleeps in poll until something
// comes; `spinning`: it calls Await again and again, as a rank without a job does for a while; `both spin`:
// the coordinator polls too, as with --spin-us 50. The same rounds also measure the round trip of bare gRPC
// (bare_session.h), whose server blocks.
//
//   session_bench [rounds]     each round runs every cell once, interleaved; the table shows every round
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/monotonic_clock.h"
#include "coordinator/shell/coordinator_server.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_stream.h"
#include "schedules/families/families.h"
#include "tests/bench/bare_session.h"
#include "tests/process/quick_planner.h"
#include "tests/unit/without_terms.h"

namespace weft {
namespace {

// "ranks,micro-batches,steps": as many ranks as stages, all in the one worker process.
absl::StatusOr<std::shared_ptr<const RunPlan>> Plan(const std::string& spec) {
  const std::vector<std::string> n = absl::StrSplit(spec, ',');
  return MakeRunPlan("bench", "gpipe",
                     WithoutTerms(*MakeSchedule("gpipe", {}, std::stoi(n[0]), std::stoi(n[1]))),
                     std::stoi(n[2]));
}

using Listening = std::function<void(const std::string& address)>;

// Submits what the parent writes, one run a line, for ever.
void ServeCoordinator(const std::string& listen, int spin_microseconds, const Listening& listening) {
  CoordinatorServerOptions options;
  options.spin_microseconds = spin_microseconds;
  options.listen = {listen};
  options.planner = QuickPlanner(Plan);
  auto server = CoordinatorServer::Start(options);
  if (!server.ok()) std::abort();
  listening((*server)->addresses()[0]);
  std::string spec;
  for (;;) {
    char c = 0;
    const ssize_t n = read(0, &c, 1);
    if (n <= 0) _exit(0);
    if (c != '\n') {
      spec += c;
    } else if (!(*server)->Submit({"", spec, 1, ""}).ok()) {
      std::abort();
    } else {
      spec.clear();
    }
  }
}

// A server in a child process; made before this process uses gRPC.
class ServerProcess {
 public:
  explicit ServerProcess(const std::function<void(const Listening&)>& serve) {
    int fds[2];
    if (pipe(fds) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      serve([&](const std::string& address) {
        if (write(fds[1], address.data(), address.size()) < 0) std::abort();
        close(fds[1]);
      });
    }
    close(fds[1]);
    char buffer[256];
    const ssize_t n = read(fds[0], buffer, sizeof(buffer));
    if (n <= 0) std::abort();
    address_.assign(buffer, n);
    close(fds[0]);
  }
  ~ServerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

struct Cell {
  double p50_us = 0, p99_us = 0, jobs_per_second = 0;
};

Cell CellOf(std::vector<double> trips) {
  std::sort(trips.begin(), trips.end());
  return {trips[trips.size() / 2], trips[trips.size() * 99 / 100], 0};
}

// One run as its only worker; `credit` jobs of each rank at a time.
class Worker {
 public:
  Worker(const std::string& address, bool spin) : spin_(spin) {
    SessionStreamOptions options;
    options.address = address;
    stream_ = *SessionStream::Open(options);
    stream_->Send(Hello{"bench", "host", getpid(), -1, ""});
  }
  ~Worker() { stream_->Close(5'000'000'000).IgnoreError(); }

  Cell Run(int credit) {
    std::vector<double> trips;
    int64_t jobs = 0, sent = 0, began = 0;
    std::vector<FromCoordinator> messages;
    for (;;) {
      messages.clear();
      while (!(spin_ ? stream_->Await(&messages) : stream_->Drain(&messages))) {
        if (!stream_->status().ok()) {
          std::fprintf(stderr, "session_bench: %s\n", stream_->status().ToString().c_str());
          std::exit(1);
        }
        if (spin_) continue;
        stream_->Arm();
        pollfd fd{stream_->event_fd(), POLLIN, 0};
        poll(&fd, 1, 1000);
      }
      const int64_t now = MonotonicNow();
      if (sent != 0) trips.push_back(static_cast<double>(now - sent) / 1000);
      for (FromCoordinator& m : messages) {
        if (const auto* assign = std::get_if<Assign>(&m)) {
          stream_->Send(Prepared{assign->run});
          for (const RankLease& l : assign->leases)
            stream_->Send(Credit{assign->run, l.rank, l.token, credit});
        } else if (const auto* grant = std::get_if<Grant>(&m)) {
          if (began == 0) began = now;
          Completions done{grant->run, grant->rank, grant->token, {}};
          done.jobs.reserve(grant->jobs.size());
          for (const Job& job : grant->jobs) done.jobs.push_back({job, now, now + 1000, 0, false});
          jobs += static_cast<int64_t>(grant->jobs.size());
          sent = MonotonicNow();
          stream_->Send(std::move(done));
        } else if (const auto* finish = std::get_if<Finish>(&m)) {
          const double seconds = static_cast<double>(now - began) * 1e-9;
          stream_->Send(Finished{finish->run, {}});
          Cell cell = CellOf(std::move(trips));
          cell.jobs_per_second = static_cast<double>(jobs) / seconds;
          return cell;
        }
      }
    }
  }

 private:
  const bool spin_;
  std::unique_ptr<SessionStream> stream_;
};

// Runs a cell in a fresh pair of processes, forked from one that has not used gRPC, and prints it.
void PrintCell(const char* socket, const char* waits, const char* measure, const std::function<Cell()>& run) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    const Cell c = run();
    std::printf("%-6s %-9s %-28s ", socket, waits, measure);
    c.p50_us > 0 ? std::printf("%10.1f %10.1f", c.p50_us, c.p99_us) : std::printf("%10s %10s", "", "");
    c.jobs_per_second > 0 ? std::printf(" %12.0f\n", c.jobs_per_second) : std::printf("\n");
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) std::abort();
}

int Main(int rounds) {
  int input[2];
  if (pipe(input) != 0 || dup2(input[0], 0) != 0) return 1;
  close(input[0]);
  struct Socket {
    const char* name;
    std::string listen;
  };
  const std::string path = absl::StrCat("/tmp/weft-session-bench-", getpid(), ".sock");
  const Socket sockets[] = {{"unix", absl::StrCat("unix:", path)}, {"tcp", "127.0.0.1:0"}};
  std::printf("%-6s %-9s %-28s %10s %10s %12s\n", "socket", "worker", "measure", "p50 us", "p99 us",
              "jobs/s");
  struct Waiting {
    const char* name;
    bool worker_spins;
    int coordinator_spin_us;
  };
  for (int round = 0; round < rounds; ++round) {
    for (const Socket& t : sockets) {
      for (const Waiting& w :
           {Waiting{"blocking", false, 0}, Waiting{"spinning", true, 0}, Waiting{"both spin", true, 50}}) {
        const auto cell = [&](const char* measure, const std::string& spec, int credit) {
          PrintCell(t.name, w.name, measure, [&] {
            ServerProcess server([&](const Listening& listening) {
              ServeCoordinator(t.listen, w.coordinator_spin_us, listening);
            });
            Worker worker(server.address(), w.worker_spins);
            if (write(input[1], (spec + "\n").data(), spec.size() + 1) < 0) std::abort();
            Cell c = worker.Run(credit);
            if (credit > 1) c.p50_us = 0;  // its trips carry many jobs
            return c;
          });
        };
        PrintCell(t.name, w.name, "bare gRPC, one message", [&] {
          ServerProcess server([&](const Listening& listening) { ServeBareSession(t.listen, listening); });
          return CellOf(BareRoundTrips(server.address(), 20'000, w.worker_spins));
        });
        unlink(path.c_str());  // its server was killed
        cell("one job, one credit", "1,100,100", 1);
        cell("closed loop, 4096 credits", "1,1000,1500", 4096);
        cell("closed loop, 8 x 512 credits", "8,500,375", 512);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc > 1 ? std::atoi(argv[1]) : 1); }
