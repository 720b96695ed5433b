// Adapts the worker's session over gRPC to the loop's CoordinatorLink, and logs its messages.
#ifndef WEFT_WORKER_SHELL_LOOP_SESSION_LINK_H_
#define WEFT_WORKER_SHELL_LOOP_SESSION_LINK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "proto/wire/session_stream.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/session_notes.h"

namespace weft {

class SessionLink final : public CoordinatorLink {
 public:
  // `log` is called with a line for each event of the session, on any thread; it may be empty.
  // With `renews`, a session that the coordinator does not know any more is replaced.
  SessionLink(std::unique_ptr<SessionStream> stream, std::function<void(const std::string&)> log,
              bool renews = false)
      : stream_(std::move(stream)), log_(std::move(log)), renews_(renews) {}

  void Send(FromWorker message) override {
    std::string line;
    {
      MutexLock lock(mu_);
      line = notes_.OnSent(message);
      if (const auto* hello = std::get_if<Hello>(&message)) hello_ = *hello;
    }
    const bool told = std::holds_alternative<Reattach>(message);
    stream_->Send(std::move(message));
    Log(line);
    if (told) AskAgainToLeave();
  }
  bool Drain(std::vector<FromCoordinator>* messages) override {
    const size_t before = messages->size();
    return Note(*messages, before, stream_->Drain(messages));
  }
  bool Await(std::vector<FromCoordinator>* messages) override {
    const size_t before = messages->size();
    return Note(*messages, before, stream_->Await(messages));
  }
  absl::Status status() const override { return stream_->status(); }
  void Arm() override { stream_->Arm(); }
  int event_fd() const override { return stream_->event_fd(); }
  bool Renew(bool returns) override {
    const absl::Status ended = stream_->status();
    Hello hello;
    {
      MutexLock lock(mu_);
      if (!renews_ || !absl::IsAborted(ended) || notes_.shutdown().has_value()) return false;
      hello = hello_;
      hello.returns = returns;
      // Peers know it by that number.
      if (returns) hello.process = notes_.process();
      notes_ = SessionNotes();
    }
    if (!stream_->Renew()) return false;
    Log(absl::StrCat("registering anew: ", ended.message()));
    stream_->Send(std::move(hello));
    if (!returns) AskAgainToLeave();
    return true;
  }

  // Tells the coordinator a line of this process's log, if a run is being served and not too many lines have
  // gone before. Any thread.
  void TellLine(LogSeverity severity, absl::string_view text) {
    LogLines lines;
    {
      MutexLock lock(mu_);
      lines.run = notes_.run();
      if (lines.run == 0 || !log_rate_.Admit(MonotonicNow())) return;
      const int64_t now = MonotonicNow() + UnixMinusMonotonic();
      if (const int64_t refused = log_rate_.TakeRefused(); refused > 0) {
        lines.lines.push_back(
            {LogSeverity::kWarning, now,
             absl::StrCat(refused, " lines before this are in the worker's own log alone")});
      }
      lines.lines.push_back({severity, now, std::string(text)});
    }
    stream_->Send(std::move(lines));
  }

  // Tells the coordinator why the run that is being served, if any, cannot go on here.
  void LeaveRun(const std::string& reason) {
    uint64_t run = 0;
    {
      MutexLock lock(mu_);
      run = notes_.run();
    }
    if (run != 0) Send(Failed{run, reason});
  }
  // Returns true if a run is being served.
  bool serves() const {
    MutexLock lock(mu_);
    return notes_.run() != 0;
  }
  // Asks the coordinator to let this worker end, once its run, if any, goes on elsewhere.
  void AskToLeave(const std::string& reason) {
    {
      MutexLock lock(mu_);
      leaves_ = reason;
    }
    Send(Leaving{reason});
  }
  // Returns SessionNotes::shutdown.
  std::optional<std::string> shutdown() const {
    MutexLock lock(mu_);
    return notes_.shutdown();
  }

  // Waits until the coordinator has everything, then says goodbye.
  absl::Status Close(int64_t wait_ns) { return stream_->Close(wait_ns); }

 private:
  // Asks a coordinator that was started again for what the one before was asked for.
  void AskAgainToLeave() {
    std::optional<std::string> reason;
    {
      MutexLock lock(mu_);
      reason = leaves_;
    }
    if (reason.has_value()) stream_->Send(Leaving{*reason});
  }
  // Notes the messages from `first` on, which have arrived if there are `any`. Returns false when the session
  // is lost for good.
  bool Note(const std::vector<FromCoordinator>& messages, size_t first, bool any) {
    for (size_t i = first; i < messages.size(); ++i) {
      std::string line;
      {
        MutexLock lock(mu_);
        line = notes_.OnReceived(messages[i]);
      }
      Log(line);
    }
    return any || stream_->status().ok();
  }
  void Log(const std::string& line) const {
    if (log_ && !line.empty()) log_(line);
  }

  const std::unique_ptr<SessionStream> stream_;
  const std::function<void(const std::string&)> log_;
  mutable Mutex mu_;
  SessionNotes notes_ ABSL_GUARDED_BY(mu_);
  LogRate log_rate_ ABSL_GUARDED_BY(mu_);
  const bool renews_;
  Hello hello_ ABSL_GUARDED_BY(mu_);                        // as it was made
  std::optional<std::string> leaves_ ABSL_GUARDED_BY(mu_);  // why it asked to leave, if it did
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_SESSION_LINK_H_
