#include "proto/wire/channel.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "proto/wire/limits.h"
#include "proto/wire/tls_credentials.h"

namespace weft {

namespace {

constexpr int kWindowBytes = 1 << 20;  // bytes in flight on a stream, for a far coordinator
// Time from a connection's acceptance to the end of its handshake.
constexpr int kHandshakeTimeoutMs = 20'000;

// Starts gRPC for the rest of the process, and silences it: it logs to stderr what it also returns as a
// status; set GRPC_VERBOSITY to see it.
void PrepareGrpc() {
  static const bool once = [] {
    // Never undone. gRPC shuts itself down with its last object otherwise, and waits without end there for
    // its timer thread if the system never let that start.
    grpc_init();
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
      google::protobuf::SetLogHandler(
          nullptr);  // it writes a line for every text of a peer that is not UTF-8
    }
    return true;
  }();
  (void)once;
}

std::shared_ptr<grpc::Channel> ChannelWith(const std::vector<Address>& addresses,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // it sends a ping for each message read, which wakes both sides
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // The caller paces reconnecting.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Never use a proxy from the environment: a coordinator is an own address.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  const std::string scheme = addresses.size() > 1 ? "ipv4:" : "";
  return grpc::CreateCustomChannel(scheme + TextOf(addresses), credentials, args);
}

// Returns the channel, which keeps its credentials alive.
std::shared_ptr<grpc::Channel> Holding(std::shared_ptr<TlsCredentials> tls,
                                       std::shared_ptr<grpc::Channel> channel) {
  struct Held {
    std::shared_ptr<TlsCredentials> tls;
    std::shared_ptr<grpc::Channel> channel;
  };
  const auto held = std::make_shared<Held>(Held{std::move(tls), std::move(channel)});
  return std::shared_ptr<grpc::Channel>(held, held->channel.get());
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenForeignChannel(const std::vector<Address>& addresses,
                                                                  const std::string& tls) {
  PrepareGrpc();
  if (tls.empty()) return ChannelWith(addresses, grpc::InsecureChannelCredentials());
  auto credentials = TlsCredentials::Start(tls, OwnCertificate::kOptional, {});
  if (!credentials.ok()) return credentials.status();
  std::vector<std::string> hosts;
  hosts.reserve(addresses.size());
  for (const Address& address : addresses) hosts.push_back(address.host);
  return Holding(*credentials, ChannelWith(addresses, (*credentials)->ForHosts(std::move(hosts))));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::vector<Address>& addresses,
                                                           const SecurityFlags& security,
                                                           std::function<void(const std::string&)> complain) {
  bool wants_tls = false;
  for (const Address& address : addresses) {
    const absl::StatusOr<Protection> protection = ProtectionAt(address, security, "connect to");
    if (!protection.ok()) return protection.status();
    wants_tls |= *protection == Protection::kTls;
  }
  PrepareGrpc();
  if (!wants_tls) return ChannelWith(addresses, grpc::InsecureChannelCredentials());
  CertificateWatch::Observer observer;
  observer.refused = [complain = std::move(complain)](const absl::Status& why) {
    if (complain) complain(absl::StrCat("new certificates are not taken: ", why.message()));
  };
  const OwnCertificate own = security.token.empty() ? OwnCertificate::kRequired : OwnCertificate::kOptional;
  auto tls = TlsCredentials::Start(security.tls, own, std::move(observer));
  if (!tls.ok()) return tls.status();
  return Holding(*tls, ChannelWith(addresses, (*tls)->ForChannel(security.token)));
}

void ConfigureServer(grpc::ServerBuilder* builder) {
  PrepareGrpc();
  builder->SetMaxReceiveMessageSize(kMaxReceivedBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  // Without this, two coordinators could share a port, and each would get some of the workers.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

absl::Status FromGrpc(const grpc::Status& status) {
  // The codes of both are the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

gpr_timespec DeadlineAt(int64_t monotonic_ns) {
  if (monotonic_ns == INT64_MAX) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const int64_t delta = std::max<int64_t>(0, monotonic_ns - MonotonicNow());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(delta, GPR_TIMESPAN));
}

}  // namespace weft
