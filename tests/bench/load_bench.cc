// Many sessions and many runs in the real weft-coordinator, with a store, over TCP of loopback:
//   - the time from a completion, which leaves a rank room for a job, to the grant of one: p50, p99, the
//     most; without the first tenth of the time, in which all workers come at once
//   - the coordinator's resident memory, its descriptors and the time of its processor, every so often:
//   memory
//     and descriptors must stay as they are once as many runs have ended as it remembers
//
//   load_bench BIN_DIR [seconds] [sessions] [runs] [ms a job] [seconds a run]
//
// Each of several processes speaks for 25 workers, each with a session of its own. More in one process would
// wait for each other, because one of gRPC's threads at a time looks for what has come. A worker prepares at
// once, has each of its jobs for a drawn time, from half to one and a half times the mean, one at a time,
// reports every second as a worker does, and saves its checkpoints at once. It does not wait for other
// workers: so its ranks stay within the window of steps of which the coordinator grants, and each completion
// is answered by a grant. So many runs are there all the time: where one ends, another is submitted, and
// together they have all the workers.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "base/open_files.h"
#include "proto/wire/session_stream.h"
#include "tests/bench/coordinator_process.h"
#include "tests/test_folder.h"

namespace weft {
namespace {

constexpr int kCredit = 4;
constexpr int kSessionsOfAProcess = 25;
constexpr int64_t kReportNs = 1'000'000'000;

struct Load {
  int seconds = 600, sessions = 1000, runs = 50, job_ms = 500, run_seconds = 20;
  int ranks() const { return sessions / runs; }
};

// Latencies in buckets of 50 us, so that their number does not grow with the time. They lie in memory that
// processes share.
class Latencies {
 public:
  static Latencies* MakeShared() {
    void* memory =
        mmap(nullptr, sizeof(Latencies), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) EndBench("no memory to share");
    return new (memory) Latencies;
  }
  void Add(int64_t ns) {
    ++buckets_[std::min<size_t>(static_cast<size_t>(ns / 50'000), kBuckets - 1)];
    ++count_;
    for (int64_t most = most_; ns > most && !most_.compare_exchange_weak(most, ns);) {
    }
  }
  double Ms(double share) const {
    auto left = static_cast<int64_t>(share * static_cast<double>(count_));
    for (size_t i = 0; i < kBuckets; ++i) {
      left -= buckets_[i];
      if (left < 0) return static_cast<double>(i + 1) * 0.05;
    }
    return 0;
  }
  // Forgets what has been added.
  void Clear() {
    for (auto& bucket : buckets_) bucket = 0;
    count_ = most_ = 0;
  }
  int64_t count() const { return count_; }
  double MostMs() const { return static_cast<double>(most_) * 1e-6; }

 private:
  static constexpr size_t kBuckets = 40'000;
  std::atomic<int64_t> buckets_[kBuckets] = {};
  std::atomic<int64_t> count_{0}, most_{0};
};

// One worker process, as the coordinator sees it.
class SimulatedWorker {
 public:
  SimulatedWorker(const std::string& address, int number, double job_ns, Latencies* latencies)
      : random_(static_cast<uint32_t>(number)), job_ns_(job_ns), latencies_(*latencies) {
    SessionStreamOptions options;
    options.address = address;
    auto stream = SessionStream::Open(options);
    if (!stream.ok()) EndBench(stream.status().ToString());
    stream_ = *std::move(stream);
    stream_->Send(
        Hello{absl::StrCat("w", number), "bench", 1'000'000 + number, -1, absl::StrCat("address ", number)});
  }

  int event_fd() const { return stream_->event_fd(); }

  void Drain() {
    messages_.clear();
    if (!stream_->Drain(&messages_) && !stream_->status().ok())
      EndBench(absl::StrCat("a session ended: ", stream_->status().ToString()));
    for (FromCoordinator& message : messages_) std::visit([this](auto& m) { On(m); }, message);
  }

  // Returns when Advance has something to do.
  int64_t due() const { return run_ == 0 ? INT64_MAX : std::min(report_at_, job_ends_); }

  void Advance(int64_t now) {
    if (run_ == 0) return;
    if (now >= job_ends_) EndJob(now);
    if (now < report_at_) return;
    report_at_ = now + kReportNs;
    Report report{run_, {}};
    for (const auto& [rank, token] : tokens_) {
      RankReport& r = report.ranks.emplace_back();
      r.rank = rank;
      r.busy_seconds["forward"] = static_cast<double>(now % 1'000'000'000) * 1e-9;
      r.idle_seconds["dependency"] = 0.25;
      r.live_bytes["activations"] = r.peak_bytes["activations"] = 1 << 20;
      r.wall_seconds = 1;
    }
    stream_->Send(std::move(report));
  }

 private:
  void On(Assign& m) {
    run_ = m.run;
    report_at_ = MonotonicNow() + kReportNs;
    jobs_.clear();
    room_since_.clear();
    tokens_.clear();
    last_stage_ = static_cast<int>(m.process_of_rank.size()) - 1;
    stream_->Send(Prepared{m.run});
    for (const RankLease& lease : m.leases) {
      tokens_[lease.rank] = lease.token;
      stream_->Send(Credit{m.run, lease.rank, lease.token, kCredit});
    }
  }
  void On(Grant& m) {
    const int64_t now = MonotonicNow();
    for (const Job& job : m.jobs) {
      if (!room_since_.empty()) {
        latencies_.Add(now - room_since_.front());
        room_since_.pop_front();
      }
      jobs_.push_back({m.rank, m.token, job});
    }
    if (job_ends_ == INT64_MAX) BeginJob(now);
  }
  void On(Finish& m) {
    Finished finished{m.run, {}};
    for (const auto& [rank, token] : tokens_) finished.ranks.emplace_back().rank = rank;
    stream_->Send(std::move(finished));
    Forget();
  }
  void On(Abort& m) { EndBench(absl::StrCat("run ", m.run, " is aborted: ", m.reason)); }
  void On(Shutdown& m) { EndBench(absl::StrCat("a worker is told to end: ", m.reason)); }
  void On(TakeSnapshot& m) { stream_->Send(SnapshotSaved{m.run, m.step, ""}); }
  void On(SealCheckpoint& m) { stream_->Send(CheckpointSealed{m.run, m.step, m.drop ? "dropped" : ""}); }
  template <class Message>
  void On(Message&) {}

  void BeginJob(int64_t now) {
    job_ends_ = INT64_MAX;
    if (jobs_.empty()) return;
    job_began_ = now;
    job_ends_ = now + static_cast<int64_t>((0.5 + uniform_(random_)) * job_ns_);
  }
  void EndJob(int64_t now) {
    const Held held = jobs_.front();
    jobs_.pop_front();
    Completion done{held.job, job_began_, now, 0, false};
    if (held.job.kind == JobKind::kForward && held.job.stage == last_stage_) {
      done.has_loss = true;
      done.loss = 2.5;
    }
    BeginJob(now);
    room_since_.push_back(MonotonicNow());
    stream_->Send(Completions{run_, held.rank, held.token, {done}});
  }
  void Forget() {
    run_ = 0;
    job_ends_ = report_at_ = INT64_MAX;
    jobs_.clear();
    room_since_.clear();
  }

  struct Held {
    Rank rank;
    Token token;
    Job job;
  };
  std::mt19937 random_;
  std::uniform_real_distribution<double> uniform_;
  const double job_ns_;
  Latencies& latencies_;
  std::unique_ptr<SessionStream> stream_;
  std::vector<FromCoordinator> messages_;
  std::map<Rank, Token> tokens_;
  std::deque<Held> jobs_;
  std::deque<int64_t> room_since_;  // times of completions that no grant has answered
  uint64_t run_ = 0;
  int last_stage_ = 0;
  int64_t job_began_ = 0, job_ends_ = INT64_MAX, report_at_ = INT64_MAX;
};

// Serves workers on one thread, for ever.
[[noreturn]] void Serve(const std::vector<std::unique_ptr<SimulatedWorker>>& workers) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  for (size_t i = 0; i < workers.size(); ++i) {
    epoll_event event{EPOLLIN, {}};
    event.data.u64 = i;
    epoll_ctl(epoll, EPOLL_CTL_ADD, workers[i]->event_fd(), &event);
  }
  std::set<std::pair<int64_t, size_t>> dues;
  std::vector<int64_t> due_of(workers.size(), INT64_MAX);
  const auto note = [&](size_t i) {
    dues.erase({due_of[i], i});
    due_of[i] = workers[i]->due();
    if (due_of[i] != INT64_MAX) dues.emplace(due_of[i], i);
  };
  std::vector<epoll_event> events(256);
  for (;;) {
    const int64_t next = dues.empty() ? INT64_MAX : dues.begin()->first - MonotonicNow();
    const int wait = next <= 0 ? 0 : static_cast<int>(std::min<int64_t>(next / 1'000'000 + 1, 100));
    const int ready = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), wait);
    for (int i = 0; i < ready; ++i) {
      workers[events[i].data.u64]->Drain();
      note(events[i].data.u64);
    }
    const int64_t now = MonotonicNow();
    while (!dues.empty() && dues.begin()->first <= now) {
      const size_t i = dues.begin()->second;
      workers[i]->Advance(now);
      note(i);
    }
  }
}

// Starts a process that speaks for these workers. It ends with this one, which has not used gRPC.
void StartWorkers(const std::string& address, int first, int count, double job_ns, Latencies* latencies) {
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RaiseOpenFileLimit();
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (int i = 0; i < count; ++i)
    workers.push_back(std::make_unique<SimulatedWorker>(address, first + i, job_ns, latencies));
  Serve(workers);
}

// Keeps so many runs going, until `stop`.
void Submit(const CoordinatorProcess& coordinator, const Load& load, const std::atomic<bool>& stop,
            std::atomic<int>* ended) {
  const std::unique_ptr<RunsClient> client = coordinator.Client();
  constexpr int kMicrobatches = 16;
  // A rank has a forward and a backward of each micro-batch, and an update.
  const int steps = std::max(2, load.run_seconds * 1000 / (load.job_ms * (2 * kMicrobatches + 1)));
  std::mt19937 random(1);
  for (int submitted = 0; !stop;) {
    const auto list = client->List();
    if (!list.ok()) EndBench(absl::StrCat("the runs are not listed: ", list.status().ToString()));
    int live = 0;
    for (const RunInfo& run : *list) {
      live += IsFinal(run.state) ? 0 : 1;
      if (run.state == RunState::kFailed) EndBench(absl::StrCat("a run failed: ", run.reason));
    }
    *ended = submitted - live;
    for (; live < load.runs; ++live, ++submitted) {
      // Runs have different lengths, so that they do not end together.
      const int length = steps + static_cast<int>(random() % static_cast<uint32_t>(steps));
      const auto run = client->Submit({"", GptRunJson(load.ranks(), kMicrobatches, length, "load"), 0, ""});
      if (!run.ok()) EndBench(absl::StrCat("not submitted: ", run.status().ToString()));
    }
    usleep(200'000);
  }
}

int Main(const std::string& bin, const Load& load) {
  const TestFolder folder;
  const CoordinatorProcess coordinator(bin, folder.path());
  std::printf("%d sessions, %d runs of %d ranks, %d ms a job\n", load.sessions, load.runs, load.ranks(),
              load.job_ms);
  std::fflush(stdout);
  Latencies* const latencies = Latencies::MakeShared();
  for (int first = 0; first < load.sessions; first += kSessionsOfAProcess) {
    const int count = std::min(kSessionsOfAProcess, load.sessions - first);
    StartWorkers(coordinator.tcp(), first, count, load.job_ms * 1e6, latencies);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> ended{0};
  std::thread submitting([&] { Submit(coordinator, load, stop, &ended); });
  const int64_t began = MonotonicNow();
  const int every = std::max(1, load.seconds / 20);
  std::printf("%8s %10s %12s %12s %10s\n", "seconds", "runs ended", "resident MiB", "descriptors",
              "processor");
  for (int second = every; second <= load.seconds; second += every) {
    usleep(static_cast<useconds_t>(std::max<int64_t>(0, began + second * 1'000'000'000ll - MonotonicNow()) /
                                   1000));
    std::printf("%8d %10d %12.1f %12d %8.1f s\n", second, ended.load(), coordinator.ResidentMiB(),
                coordinator.Descriptors(), coordinator.CpuSeconds());
    std::fflush(stdout);
    if (second == 2 * every) latencies->Clear();
  }
  stop = true;
  submitting.join();
  std::printf("claims: %lld, p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, most %.1f ms\n",
              static_cast<long long>(latencies->count()), latencies->Ms(0.5), latencies->Ms(0.99),
              latencies->Ms(0.999), latencies->MostMs());
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc < 2)
    weft::EndBench("usage: load_bench BIN_DIR [seconds] [sessions] [runs] [ms a job] [seconds a run]");
  weft::Load load;
  int* const numbers[] = {&load.seconds, &load.sessions, &load.runs, &load.job_ms, &load.run_seconds};
  for (int i = 2; i < argc && i < 7; ++i) *numbers[i - 2] = std::atoi(argv[i]);
  return weft::Main(argv[1], load);
}
