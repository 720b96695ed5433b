#include "coordinator/shell/coordinator_server.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/net/acceptor.h"
#include "base/net/address.h"
#include "base/net/listener.h"
#include "coordinator/shell/access_check.h"
#include "coordinator/shell/server_loop.h"
#include "proto/session/access.h"
#include "proto/wire/channel.h"
#include "proto/wire/tls_credentials.h"

namespace weft {
namespace {

constexpr int64_t kLongestLook = 1'000'000'000;
constexpr absl::Duration kLastWords = absl::Seconds(1);  // time for shut-down messages to be heard

struct CheckedAddress {
  Address address;
  Protection protection = Protection::kPlain;
};

absl::StatusOr<std::vector<CheckedAddress>> CheckAddresses(const CoordinatorServerOptions& options) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  std::vector<CheckedAddress> addresses;
  for (const std::string& text : options.listen) {
    absl::StatusOr<Address> a = ParseAddress(text);
    if (!a.ok()) return a.status();
    const absl::StatusOr<Protection> protection = ProtectionAt(*a, options.security, "listen on");
    if (!protection.ok()) return protection.status();
    addresses.push_back({*std::move(a), *protection});
  }
  return addresses;
}

// Opens the certificates, which must be a coordinator's: clients accept no others.
absl::StatusOr<std::shared_ptr<TlsCredentials>> OpenTls(const CoordinatorServerOptions& options) {
  auto tls = TlsCredentials::Start(options.security.tls, OwnCertificate::kRequired, options.certificates);
  if (!tls.ok()) return tls.status();
  const absl::StatusOr<Identity> own = IdentityOf((*tls)->first().uris);
  if (own.ok() && own->role == Role::kCoordinator) return tls;
  return absl::FailedPreconditionError(absl::StrCat(
      options.security.tls, "/tls.crt is no coordinator's: ",
      own.ok() ? absl::StrCat("it is that of ", own->text()) : std::string(own.status().message())));
}

// Returns null where there are no tokens.
absl::StatusOr<std::shared_ptr<UserTokens>> OpenTokens(const CoordinatorServerOptions& options) {
  if (options.tokens.empty()) return nullptr;
  return UserTokens::Open(options.tokens, options.certificates.refused);
}

class GrpcCoordinatorServer final : public CoordinatorServer {
 public:
  ~GrpcCoordinatorServer() override { Stop("its owner ended"); }

  absl::Status Begin(CoordinatorServerOptions options) {
    const absl::StatusOr<std::vector<CheckedAddress>> addresses = CheckAddresses(options);
    if (!addresses.ok()) return addresses.status();
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    std::vector<std::unique_ptr<Listener>> listeners;
    for (const CheckedAddress& checked : *addresses) {
      absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Open({checked.address});
      if (!listener.ok()) return listener.status();
      listeners.push_back(*std::move(listener));
    }
    // gRPC's own listener does not survive a failed accept().
    using Connections = grpc::experimental::ExternalConnectionAcceptor;
    const auto add = [&](const std::shared_ptr<grpc::ServerCredentials>& credentials) {
      connections_.push_back(builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials));
      return connections_.back().get();
    };
    Connections* const plain = add(grpc::InsecureServerCredentials());
    Connections* encrypted = nullptr;
    if (!options.security.tls.empty()) {
      auto tls = OpenTls(options);
      if (!tls.ok()) return tls.status();
      tls_ = *std::move(tls);
      absl::StatusOr<std::shared_ptr<UserTokens>> tokens = OpenTokens(options);
      if (!tokens.ok()) return tokens.status();
      const auto access = std::make_shared<AccessCheck>(*tokens);
      access_ = access;
      encrypted = add(tls_->ForServer(
          access, *tokens == nullptr ? OwnCertificate::kRequired : OwnCertificate::kOptional));
    } else if (!options.tokens.empty()) {
      return absl::InvalidArgumentError("tokens need TLS: pass --tls DIR too");
    }
    builder.RegisterService(&sessions_);
    builder.RegisterService(&runs_);
    builder.RegisterService(&health_);
    auto queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      queue->Shutdown();
      return absl::InternalError("the gRPC server does not start");
    }
    keeps_runs_ = options.store != nullptr;
    loop_ = std::make_unique<ServerLoop>(std::move(options), std::move(queue), &sessions_, &runs_, &health_);
    loop_->Start([this](const grpc::ServerContext& call) { return NameOfCaller(call); });
    for (size_t i = 0; i < listeners.size(); ++i) {
      addresses_.push_back(listeners[i]->addresses().front().text());
      Connections* const to = (*addresses)[i].protection == Protection::kTls ? encrypted : plain;
      acceptors_.push_back(std::make_unique<Acceptor>(std::move(listeners[i]), [to](int descriptor) {
        Connections::NewConnectionParameters connection;
        connection.fd = descriptor;
        to->HandleNewConnection(&connection);
      }));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }

  absl::StatusOr<uint64_t> Submit(const SubmitRequest& request) override {
    return Ask<absl::StatusOr<uint64_t>>(Over(),
                                         [&](auto answer) { loop_->Submit(request, std::move(answer)); });
  }

  using CoordinatorServer::Cancel;
  absl::Status Cancel(uint64_t run, const std::string& reason, bool save) override {
    const auto cancel = [&](auto answer) { loop_->Cancel(run, reason, save, std::move(answer)); };
    return Ask<absl::StatusOr<uint64_t>>(Over(), cancel).status();
  }

  absl::StatusOr<RunInfo> GetRun(uint64_t run) override {
    return Ask<absl::StatusOr<RunInfo>>(Over(), [&](auto answer) { answer(loop_->core().GetRun(run)); });
  }

  absl::StatusOr<Overview> LookAround(std::optional<uint64_t> run) override {
    // It outlives a caller that has not waited.
    struct Answer {
      Notification given;
      Overview overview;
    };
    const auto answer = std::make_shared<Answer>();
    const bool posted = loop_->Post([this, run, answer] {
      answer->overview = OverviewNow(run);
      answer->given.Notify();
    });
    if (!posted) return Over();
    if (!answer->given.WaitWithTimeout(kLongestLook))
      return absl::UnavailableError("the coordinator has not answered for a second");
    return std::move(answer->overview);
  }

  void Log(uint64_t run, LogEntry entry) override {
    loop_->Post([this, run, entry = std::move(entry)] { loop_->Log(run, entry); });
  }

  void SetLimits(const CoreLimits& limits) override {
    loop_->Post([this, limits] { loop_->Add(ChangeLimits{limits}); });
  }

  void WorkerExited(const weft::WorkerExited& exited) override {
    loop_->Post([this, exited] { loop_->Add(exited); });
  }

  std::string Problem() const override {
    std::string problem = loop_->heart().Problem(MonotonicNow());
    if (!problem.empty()) return problem;
    problem = DescriptorShortage(Listener::kReserved);
    return problem.empty() ? "" : absl::StrCat("new connections are refused: ", problem);
  }

  void Stop(const std::string& reason) override {
    if (server_ == nullptr || std::exchange(stopped_, true)) return;
    loop_->Post([this] { loop_->StopServing(); });
    // Runs that are in a store stay as they are, and their workers come to the next coordinator.
    if (!keeps_runs_) loop_->Post([this, reason] { loop_->Add(StopAll{reason}); });
    const absl::Time deadline = absl::Now() + kLastWords;
    while (absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
      if (Ask<bool>(true, [&](auto answer) { answer(loop_->settled()); })) break;
    }
    acceptors_.clear();
    server_->Shutdown(gpr_now(GPR_CLOCK_REALTIME));
    loop_->Join();
    server_.reset();  // before the completion queue, which the loop owns
  }

 private:
  static absl::Status Over() { return absl::UnavailableError("the coordinator has stopped"); }

  // Runs on the loop's thread.
  Overview OverviewNow(std::optional<uint64_t> run) const {
    const int64_t now = MonotonicNow(), offset = loop_->unix_minus_monotonic();
    Overview overview{{}, loop_->core().ListWorkers(now), now + offset};
    if (!run.has_value()) {
      overview.runs = loop_->core().ListRuns();
    } else if (absl::StatusOr<RunInfo> found = loop_->core().GetRun(*run); found.ok()) {
      overview.runs.push_back(*std::move(found));
    }
    for (RunInfo& r : overview.runs) {
      for (int64_t* time : {&r.submitted_ns, &r.started_ns, &r.ended_ns}) {
        if (*time != 0) *time += offset;
      }
    }
    return overview;
  }

  // Runs `question` on the loop's thread and waits for its answer; returns `over` once the loop has ended.
  template <typename Result, typename Question>
  Result Ask(Result over, Question question) {
    Notification answered;
    std::optional<Result> result;
    const bool posted = loop_->Post([&] {
      question([&](Result r) {
        result.emplace(std::move(r));
        answered.Notify();
      });
    });
    if (!posted) return over;
    answered.Wait();
    return *std::move(result);
  }

  std::string NameOfCaller(const grpc::ServerContext& call) const {
    if (access_ == nullptr) return "";
    const absl::StatusOr<Identity> caller = access_->CallerOf(*call.auth_context(), call.client_metadata());
    return caller.ok() ? caller->name : "";
  }

  SessionService sessions_;
  v1::Runs::AsyncService runs_;
  HealthCalls::Service health_;
  std::vector<std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>> connections_;
  std::shared_ptr<TlsCredentials> tls_;        // null without TLS
  std::shared_ptr<const AccessCheck> access_;  // likewise
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ServerLoop> loop_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;  // one an address
  bool stopped_ = false;
  bool keeps_runs_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    CoordinatorServerOptions options) {
  auto server = std::make_unique<GrpcCoordinatorServer>();
  if (absl::Status s = server->Begin(std::move(options)); !s.ok()) return s;
  return std::unique_ptr<CoordinatorServer>(std::move(server));
}

}  // namespace weft
