#include "coordinator/store/etcd_leadership.h"

#include <cstdint>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class RenewedLeadership final : public EtcdLeadership {
 public:
  RenewedLeadership(EtcdClient* client, const EtcdLeadershipOptions& options, int64_t lease, int64_t revision)
      : client_(client), options_(options), lease_(lease), token_{options.key, revision} {}

  absl::Status Start() {
    absl::StatusOr<std::thread> thread = TryStartThread([this] { Renew(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  ~RenewedLeadership() override {
    ended_.Notify();
    if (thread_.joinable()) thread_.join();
    client_->Revoke(lease_).IgnoreError();
  }

  const EtcdCondition& token() const override { return token_; }

 private:
  // A renewal that fails is tried again: only etcd says that the lease is gone.
  void Renew() {
    while (!ended_.WaitWithTimeout(options_.lease_seconds * kSecond / 3)) {
      const absl::StatusOr<bool> kept = client_->KeepAlive(lease_);
      if (!kept.ok() || *kept) continue;
      if (options_.lost) options_.lost();
      return;
    }
  }

  EtcdClient* const client_;
  const EtcdLeadershipOptions options_;
  const int64_t lease_;
  const EtcdCondition token_;
  Notification ended_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdLeadership>> EtcdLeadership::Try(EtcdClient* client,
                                                                    const EtcdLeadershipOptions& options,
                                                                    std::string* leader) {
  const absl::StatusOr<EtcdKey> now = client->Read(options.key);
  if (!now.ok()) return now.status();
  *leader = now->value;
  if (now->create_revision != 0) return nullptr;
  const absl::StatusOr<int64_t> lease = client->GrantLease(options.lease_seconds);
  if (!lease.ok()) return lease.status();
  const absl::StatusOr<int64_t> revision =
      client->ChangeIf({options.key, 0}, {{options.key, options.name, "", *lease}});
  if (!revision.ok() || *revision == 0) {
    client->Revoke(*lease).IgnoreError();
    if (!revision.ok()) return revision.status();
    return nullptr;
  }
  auto leadership = std::make_unique<RenewedLeadership>(client, options, *lease, *revision);
  if (absl::Status started = leadership->Start(); !started.ok()) return started;
  return leadership;
}

bool MayLeadLater(const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return false;
    default:
      return true;
  }
}

}  // namespace weft
