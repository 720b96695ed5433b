#include "client/kubeflow/status_reporter.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "base/net/http_post.h"
#include "base/threads.h"
#include "client/console/console.h"
#include "client/kubeflow/trainer_status.h"

namespace weft {
namespace {

constexpr int64_t kEvery = 5'000'000'000;  // ns

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Reads the token anew each time: Kubernetes renews it.
std::string ReadToken(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

}  // namespace

std::unique_ptr<StatusReporter> StatusReporter::FromEnvironment() {
  std::string url = Variable("KUBEFLOW_TRAINER_STATUS_URL");
  if (url.empty()) return nullptr;
  return std::unique_ptr<StatusReporter>(new StatusReporter(std::move(url)));
}

StatusReporter::StatusReporter(std::string url)
    : url_(std::move(url)),
      authority_(Variable("KUBEFLOW_TRAINER_STATUS_CA_CERT")),
      token_file_(Variable("KUBEFLOW_TRAINER_STATUS_TOKEN")),
      thread_(StartThread([this] { SendUntilOver(); })) {}

StatusReporter::~StatusReporter() {
  over_.Notify();
  thread_.join();
}

void StatusReporter::Tell(const ProgressState& state) {
  MutexLock lock(mutex_);
  newest_ = state;
}

void StatusReporter::SendUntilOver() {
  for (bool over = false; !over;) {
    over = over_.WaitWithTimeout(kEvery);
    std::optional<ProgressState> state;
    {
      MutexLock lock(mutex_);
      state = std::exchange(newest_, std::nullopt);
    }
    if (state.has_value()) Send(*state);
  }
}

void StatusReporter::Send(const ProgressState& state) {
  HttpPost post{url_, authority_, token_file_.empty() ? "" : ReadToken(token_file_), "application/json"};
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  post.body = TrainerStatus(state, StepsPerSecond(state), time);
  const absl::Status sent = Post(post);
  if (sent.ok() || std::exchange(warned_, true)) return;
  PrintMessage(absl::StrCat("warning: Kubeflow is not told how far the training is: ", sent.message()));
}

// Returns the speed since the first state with a step.
double StatusReporter::StepsPerSecond(const ProgressState& state) {
  const double now = MonotonicSeconds();
  if (began_at_ < 0 && state.steps_done > state.first_step) {
    began_ = now;
    began_at_ = state.steps_done;
  }
  const bool known = began_at_ >= 0 && state.steps_done > began_at_ && now > began_;
  return known ? (state.steps_done - began_at_) / (now - began_) : 0;
}

}  // namespace weft
