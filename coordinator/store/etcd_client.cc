#include "coordinator/store/etcd_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "etcd/etcd.grpc.pb.h"
#include "proto/wire/channel.h"

namespace weft {
namespace {

namespace pb = etcdserverpb;

constexpr std::chrono::seconds kCall{3};
constexpr std::chrono::seconds kConnect{1};
constexpr int64_t kPage = 500;  // keys of one answer, at most

// Returns the first key behind all that begin with the prefix.
std::string Behind(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

class GrpcEtcdClient final : public EtcdClient {
 public:
  GrpcEtcdClient(const std::vector<Address>& endpoints, std::shared_ptr<grpc::Channel> channel)
      : name_(TextOf(endpoints)),
        channel_(std::move(channel)),
        keys_(pb::KV::NewStub(channel_)),
        leases_(pb::Lease::NewStub(channel_)) {}

  absl::StatusOr<std::vector<EtcdKey>> ReadAll(const std::string& prefix) override {
    std::vector<EtcdKey> all;
    pb::RangeRequest in;
    in.set_key(prefix);
    in.set_range_end(Behind(prefix));
    in.set_limit(kPage);
    while (true) {
      auto out = Range(in);
      if (absl::IsResourceExhausted(out.status()) && in.limit() > 1) {
        in.set_limit(in.limit() / 2);  // the values are large: fewer of them fit one message
        continue;
      }
      if (!out.ok()) return out.status();
      for (pb::KeyValue& found : *out->mutable_kvs()) all.push_back(KeyOf(found));
      if (!out->more() || out->kvs().empty()) return all;
      in.set_key(all.back().key + '\0');
      in.set_revision(in.revision() > 0 ? in.revision() : out->header().revision());
    }
  }

  absl::StatusOr<EtcdKey> Read(const std::string& key) override {
    pb::RangeRequest in;
    in.set_key(key);
    auto out = Range(in);
    if (!out.ok()) return out.status();
    return out->kvs().empty() ? EtcdKey{key, ""} : KeyOf(*out->mutable_kvs(0));
  }

  absl::StatusOr<int64_t> ChangeIf(const EtcdCondition& condition,
                                   const std::vector<EtcdChange>& changes) override {
    pb::TxnRequest in;
    pb::Compare* compare = in.add_compare();
    compare->set_target(pb::Compare::CREATE);
    compare->set_key(condition.key);
    compare->set_create_revision(condition.create_revision);
    for (const EtcdChange& change : changes) Add(change, in.add_success());
    pb::TxnResponse out;
    const absl::Status done = Call([&](auto* context) { return keys_->Txn(context, in, &out); });
    if (!done.ok()) return done;
    return out.succeeded() ? out.header().revision() : 0;
  }

  absl::StatusOr<int64_t> GrantLease(int seconds) override {
    pb::LeaseGrantRequest in;
    pb::LeaseGrantResponse out;
    in.set_ttl(seconds);
    const absl::Status done = Call([&](auto* context) { return leases_->LeaseGrant(context, in, &out); });
    if (!done.ok()) return done;
    return out.id();
  }

  absl::StatusOr<bool> KeepAlive(int64_t lease) override {
    pb::LeaseKeepAliveRequest in;
    pb::LeaseKeepAliveResponse out;
    in.set_id(lease);
    bool answered = false;
    const absl::Status done = Call([&](auto* context) {
      const auto stream = leases_->LeaseKeepAlive(context);
      answered = stream->Write(in) && stream->WritesDone() && stream->Read(&out);
      return stream->Finish();
    });
    if (!done.ok()) return done;
    if (!answered) return absl::UnavailableError(absl::StrCat("etcd at ", name_, " did not answer"));
    return out.ttl() > 0;
  }

  absl::Status Revoke(int64_t lease) override {
    pb::LeaseRevokeRequest in;
    pb::LeaseRevokeResponse out;
    in.set_id(lease);
    return Call([&](auto* context) { return leases_->LeaseRevoke(context, in, &out); });
  }

 private:
  static EtcdKey KeyOf(pb::KeyValue& found) {
    return {std::move(*found.mutable_key()), std::move(*found.mutable_value()), found.create_revision()};
  }

  static void Add(const EtcdChange& change, pb::RequestOp* to) {
    if (!change.end.empty()) {
      pb::DeleteRangeRequest* removal = to->mutable_request_delete_range();
      removal->set_key(change.key);
      removal->set_range_end(change.end);
      return;
    }
    pb::PutRequest* put = to->mutable_request_put();
    put->set_key(change.key);
    put->set_value(change.value);
    put->set_lease(change.lease);
  }

  absl::StatusOr<pb::RangeResponse> Range(const pb::RangeRequest& in) {
    pb::RangeResponse out;
    const absl::Status done = Call([&](auto* context) { return keys_->Range(context, in, &out); });
    if (!done.ok()) return done;
    return out;
  }

  template <typename Method>
  absl::Status Call(Method method) const {
    // gRPC gets on with a connection only while somebody waits for it, and a call on a channel that has
    // failed does not wait: calls alone, with pauses between them, would let each connection time out.
    channel_->WaitForConnected(std::chrono::system_clock::now() + kConnect);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    absl::Status status = FromGrpc(method(&context));
    if (status.ok()) return status;
    const std::string sentence = absl::StrCat("etcd at ", name_, ": ", status.message());
    return absl::IsDeadlineExceeded(status) ? absl::UnavailableError(sentence)
                                            : absl::Status(status.code(), sentence);
  }

  const std::string name_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<pb::KV::Stub> keys_;
  const std::unique_ptr<pb::Lease::Stub> leases_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(const std::vector<Address>& endpoints,
                                                             const std::string& tls) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenForeignChannel(endpoints, tls);
  if (!channel.ok()) return channel.status();
  return std::make_unique<GrpcEtcdClient>(endpoints, *std::move(channel));
}

}  // namespace weft
