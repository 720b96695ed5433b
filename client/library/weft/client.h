// The client library of Weft: submits trainings to a coordinator, and looks at them, watches and cancels
// them.
//
//   absl::StatusOr<weft::Client> client = weft::Client::Make({"10.0.0.1:7070", "certs/submitter"});
//   absl::StatusOr<std::string> run_file = weft::Client::ReadRunFile("run.yaml");
//   absl::StatusOr<uint64_t> run = client->Submit({*run_file});
//   absl::StatusOr<weft::Client::Run> ended = client->Wait(*run);
//
// This header needs C++17, and of other libraries Abseil's status alone. docs/guide/clients.md tells of the
// service behind it.
//
// Threads: every method may be called from any thread, but a client may be moved or destroyed only while no
// other thread uses it. Each call blocks until its answer or its deadline.
//
// Ownership: a client owns its connection. The library runs threads of its own while a client is there. It
// silences the log of gRPC in this process, unless the environment has GRPC_VERBOSITY.
//
// Failure: InvalidArgument, NotFound and others as proto/weft/v1/runs.proto says of the method. Unavailable:
// nobody answers at the address, or one side does not take the other's certificate. DeadlineExceeded: no
// answer in time. PermissionDenied and Unauthenticated: the caller may not do this. The message says what to
// do.
#ifndef WEFT_CLIENT_H_
#define WEFT_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

class Client {
 public:
  struct Options {
    // Address of the coordinator: unix:PATH, HOST:PORT, or the addresses of several, with commas.
    std::string coordinator = "127.0.0.1:7070";
    std::string tls = {};    // folder with ca.crt, tls.crt and tls.key; "": no TLS
    std::string token = {};  // of a user; `tls` then needs ca.crt alone
    bool insecure = false;   // does without TLS on addresses that other machines reach
    // The most for an answer; Submit has 12 times as long.
    std::chrono::nanoseconds call_time = std::chrono::seconds(10);
    // The most for which a coordinator that has answered before may be out of reach while Submit, Watch and
    // Wait try again.
    std::chrono::nanoseconds patience = std::chrono::seconds(30);
  };

  // A run that loses a worker goes from kPreparing, kRunning or kFinishing back to kWaiting.
  enum class State { kSubmitted, kWaiting, kPreparing, kRunning, kFinishing, kFinished, kFailed, kCancelled };
  // Returns "submitted", "waiting", ..
  static std::string_view NameOf(State state);
  // Returns true if a run in the state has ended.
  static bool IsFinal(State state) { return state >= State::kFinished; }

  struct Submission {
    std::string run_file;      // the run file as JSON, as ReadRunFile returns it
    int processes = 0;         // worker processes to run on; 0: one a rank
    std::string output = {};   // folder of the results, from the root; "": one of the coordinator's choice
    bool overwrite = false;    // replaces the results of a former run there
    std::string file = {};     // name of the run file, for people
    int priority = 0;          // from -1000 to 1000; runs of a higher one start first
    std::string pool = {};     // the run gets workers of this pool alone; "": those without one
    std::string request = {};  // [a-z0-9-]{1,63}: the same name again is the same run; "": a new run
  };

  // Figures on held-out data.
  struct Validation {
    int step = 0;  // number of updates that the weights have had
    double loss = 0;
    std::map<std::string, double> metrics;  // "accuracy" and others, where the model has them
  };

  struct Run {
    uint64_t id = 0;
    std::string name, schedule;  // as the run file has them
    State state = State::kSubmitted;
    std::string reason;          // sentence that says why it waits, failed or was cancelled
    std::string output;          // folder of the results
    std::string output_failure;  // why results of a run that finished are missing there, once that is known
    std::string file, pool, owner;  // of its submission; the owner is the submitter's name
    int priority = 0;
    int ranks = 0, processes = 0;
    int steps = 0, steps_done = 0;
    std::optional<double> loss;            // of the last step done
    std::optional<double> gradient_norm;   // likewise, before clipping; only while watching a run that clips
    std::optional<Validation> validation;  // the newest that is complete
    std::optional<int> checkpoint_step;    // of the newest complete checkpoint
    std::string checkpoint_failure;        // why the last checkpoint that failed was not saved
    int restarts = 0;                      // how often it has begun again
    std::string restart_reason;            // why it did so the last time
    std::vector<std::string> members;      // labels of its worker processes, once it has them; empty in lists
    int64_t submitted_ns = 0, started_ns = 0, ended_ns = 0;  // nanoseconds since 1970; 0: not yet
  };

  struct Worker {
    int process = 0;  // number of the process
    std::string name, host;
    int64_t pid = 0;
    std::string device;  // "cpu", "cuda"
    std::string state;   // "free", "busy", "silent", "ending", "leaving" or "broken"
    uint64_t run = 0;    // run that it serves; 0 for none
    std::string pool;    // "" for none
    std::string node;    // machine that it is on
  };

  struct LogLine {
    uint64_t number = 0;        // place in the run's log, from 1
    std::string_view severity;  // "error", "warning" or "info"
    int64_t unix_ns = 0;        // nanoseconds since 1970, by the clock of the machine that wrote it
    std::string writer;         // "coordinator", or the label of a worker process
    std::vector<int> ranks;     // ranks of that process then
    std::string text;
  };
  struct LogPart {
    std::vector<LogLine> lines;
    uint64_t dropped = 0;  // number of lines before these that are not kept any more
    bool more = false;     // further lines are there
    bool ended = false;    // the run has ended
  };
  // Says up to which line a log has been read. A new place is before the first line.
  struct LogPlace {
    uint64_t log = 0, after = 0;
  };

  // Makes a client. Does not connect yet. InvalidArgument: a malformed address. FailedPrecondition: the
  // address needs TLS and there is none, or the folder of certificates is wrong.
  static absl::StatusOr<Client> Make(const Options& options);
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  // Reads a run file, with the files that it names, and checks it as `weft submit` does. Returns it as JSON,
  // with paths from the root. InvalidArgument: FILE:LINE, the key, and what is wrong.
  static absl::StatusOr<std::string> ReadRunFile(const std::string& path);

  // Submits a run and returns its number. Where no answer comes, it sends the request again under the same
  // name, so that there is one run.
  absl::StatusOr<uint64_t> Submit(const Submission& submission);
  absl::StatusOr<Run> Get(uint64_t run);
  // Returns all runs that the coordinator knows, by number.
  absl::StatusOr<std::vector<Run>> List();
  // Returns the workers that are connected, by number.
  absl::StatusOr<std::vector<Worker>> ListWorkers();
  // Cancels the run, with `save` once a checkpoint is saved, and returns it as it then is. A run that has
  // ended stays as it is.
  absl::StatusOr<Run> Cancel(uint64_t run, const std::string& reason, bool save = false);
  // Returns lines of the run's log behind the place, and moves it behind them. With a rank, only lines of
  // processes that had it and of the coordinator.
  absl::StatusOr<LogPart> Logs(uint64_t run, LogPlace* place, std::optional<int> rank = std::nullopt);

  // Calls `hear` on this thread with the run as it is, and then after each change and each step, until it
  // ends. Returns the run as it ended. Cancelled: `hear` returned false, or Stop was called. Unavailable: the
  // coordinator was out of reach for the patience.
  absl::StatusOr<Run> Watch(uint64_t run, const std::function<bool(const Run&)>& hear);
  // Waits until the run ends, at most so long, and returns it. DeadlineExceeded: it goes on.
  absl::StatusOr<Run> Wait(uint64_t run, std::chrono::nanoseconds most = std::chrono::nanoseconds::max());
  // Ends each Watch and Wait of this client with Cancelled, those that are called later too.
  void Stop();

 private:
  class Connection;
  explicit Client(std::unique_ptr<Connection> connection);

  std::unique_ptr<Connection> connection_;
};

}  // namespace weft

#endif  // WEFT_CLIENT_H_
