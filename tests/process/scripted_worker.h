// Acts as a worker process without compute, for tests of the control plane: it keeps a session, prepares at
// once, and ends every granted job at once, in the order granted, as if the whole run took no time. The test
// chooses what it does wrong.
#ifndef WEFT_TESTS_PROCESS_SCRIPTED_WORKER_H_
#define WEFT_TESTS_PROCESS_SCRIPTED_WORKER_H_

#include <poll.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_stream.h"

namespace weft {

struct ScriptedWorkerOptions {
  std::string address;
  std::string name;
  int64_t pid = 1;
  int credit = 4;
  int stages = 0;                // jobs of the last stage's forward have a loss
  bool complete_twice = false;   // every completion comes again
  bool stale_tokens = false;     // every completion comes first with a token of an earlier lease
  int vanish_after = -1;         // jobs after which the process is as dead: no goodbye
  std::string fail_after_first;  // reason to report after the first job
  bool keep_aborted = false;     // an aborted run is never forgotten
  int64_t spin_ns = 0;           // time for which it asks for messages again and again before it waits
};

class ScriptedWorker {
 public:
  explicit ScriptedWorker(ScriptedWorkerOptions options)
      : options_(std::move(options)), thread_([this] { Run(); }) {}
  ~ScriptedWorker() {
    stop_ = true;
    thread_.join();
  }

  int jobs() const { return jobs_; }
  int finished() const { return finished_; }
  bool shut_down() const { return shut_down_; }
  std::string aborted() const { return shut_down_ || over_ ? aborted_ : ""; }
  bool over() const { return over_; }

 private:
  void Run() {
    SessionStreamOptions stream_options;
    stream_options.address = options_.address;
    stream_ = *SessionStream::Open(stream_options);
    stream_->Send(Hello{options_.name, "test", options_.pid, -1, "address of " + options_.name});
    while (!stop_ && !shut_down_ && stream_ != nullptr && stream_->status().ok()) {
      std::vector<FromCoordinator> messages;
      if (!Spin(&messages)) {
        stream_->Arm();
        pollfd fd{stream_->event_fd(), POLLIN, 0};
        poll(&fd, 1, 20);
        if (!stream_->Drain(&messages)) continue;
      }
      for (FromCoordinator& m : messages) {
        if (stream_ != nullptr) std::visit([this](auto& v) { On(v); }, m);
      }
    }
    if (stream_ != nullptr) stream_->Close(5'000'000'000).IgnoreError();
    over_ = true;
  }

  // Asks for messages for `spin_ns`; returns false if none came.
  bool Spin(std::vector<FromCoordinator>* messages) {
    const int64_t until = MonotonicNow() + options_.spin_ns;
    while (MonotonicNow() < until) {
      if (stream_->Await(messages)) return true;
    }
    return false;
  }

  void On(Welcome&) {}
  void On(GroupId&) {}
  void On(DropCopies&) {}
  void On(Settled&) {}
  void On(TellSpans&) {}
  void On(Assign& m) {
    for (const RankLease& lease : m.leases) tokens_[lease.rank] = lease.token;
    stream_->Send(Prepared{m.run});
    for (const RankLease& lease : m.leases)
      stream_->Send(Credit{m.run, lease.rank, lease.token, options_.credit});
  }
  void On(Grant& m) {
    Completions done{m.run, m.rank, m.token, {}};
    for (const Job& job : m.jobs) {
      Completion c{job, MonotonicNow(), 0, 0, false};
      c.end_ns = c.start_ns + 1000;
      if (job.kind == JobKind::kForward && job.stage == options_.stages - 1) {
        c.has_loss = true;
        c.loss = job.step + 0.01 * job.microbatch;
      }
      done.jobs.push_back(c);
    }
    jobs_ += static_cast<int>(m.jobs.size());
    if (options_.stale_tokens) {
      Completions stale = done;
      stale.token.sequence += 1000;
      stream_->Send(stale);
    }
    stream_->Send(done);
    if (options_.complete_twice) stream_->Send(std::move(done));
    if (!options_.fail_after_first.empty()) stream_->Send(Failed{m.run, options_.fail_after_first});
    if (options_.vanish_after >= 0 && jobs_ >= options_.vanish_after) stream_.reset();
  }
  void On(Finish& m) {
    Finished finished{m.run, {}};
    for (const auto& [rank, token] : tokens_) {
      RankReport report;
      report.rank = rank;
      report.busy_seconds["forward"] = rank + 0.5;
      finished.ranks.push_back(report);
    }
    ++finished_;  // before the coordinator can know
    stream_->Send(finished);
    tokens_.clear();
  }
  void On(Abort& m) {
    aborted_ = m.reason;
    if (!options_.keep_aborted) stream_->Send(Forgotten{m.run});
  }
  void On(TakeSnapshot& m) { stream_->Send(SnapshotSaved{m.run, m.step, ""}); }
  void On(SealCheckpoint& m) { stream_->Send(CheckpointSealed{m.run, m.step, m.drop ? "dropped" : ""}); }
  void On(Validate& m) { stream_->Send(Validation{m.run, m.step, 1, 1, 0.5, {{"accuracy", 1}}, ""}); }
  void On(Shutdown&) { shut_down_ = true; }

  const ScriptedWorkerOptions options_;
  std::unique_ptr<SessionStream> stream_;
  std::map<Rank, Token> tokens_;
  std::string aborted_;
  std::atomic<int> jobs_{0}, finished_{0};
  std::atomic<bool> stop_{false}, shut_down_{false}, over_{false};
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PROCESS_SCRIPTED_WORKER_H_
