#include "worker/shell/transport/ucx_messenger.h"

#include <poll.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "worker/shell/transport/listening_sockets.h"
#include "worker/shell/transport/peer_filter.h"
#include "worker/shell/transport/receive_watch.h"

namespace weft {

std::string UcxVersion() {
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  return absl::StrCat(major, ".", minor, ".", patch);
}
namespace {

constexpr unsigned kMessageId = 7;
// The most rounds of one Progress, so that its caller gets to look at deadlines under a flood.
constexpr int kMaxRounds = 32;
constexpr size_t kMaxTransports = 64;  // UCX has at most so many lanes in a link
// The time at the end in which cut-off operations may complete.
constexpr int64_t kAbandonTime = 2'000'000'000;
constexpr int64_t kAcceptTime = 5'000'000'000;  // for UCX's thread, at the start

absl::Status FromUcx(ucs_status_t status, absl::string_view doing) {
  const std::string text = absl::StrCat(doing, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_NO_MEMORY:
      return absl::ResourceExhaustedError(text);
    case UCS_ERR_INVALID_PARAM:
      return absl::InvalidArgumentError(text);
    case UCS_ERR_CANCELED:
      return absl::CancelledError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// Returns UCX's type. For memory that is not the host's, UCX asks the drivers, which tells it the device,
// too.
ucs_memory_type_t MemoryType(MemoryPlace place) {
  return place == MemoryPlace::kHost ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_UNKNOWN;
}

std::vector<TcpSocket> Without(std::vector<TcpSocket> sockets, const std::vector<TcpSocket>& others) {
  const auto is_other = [&](const TcpSocket& socket) {
    return std::find(others.begin(), others.end(), socket) != others.end();
  };
  sockets.erase(std::remove_if(sockets.begin(), sockets.end(), is_other), sockets.end());
  return sockets;
}

std::string Show(const UcxMessenger::Settings& settings) {
  std::string s;
  for (const auto& [name, value] : settings.required) absl::StrAppend(&s, " UCX_", name, "=", value);
  return s;
}

}  // namespace

struct UcxMessenger::Impl {
  struct Link {
    Impl* impl = nullptr;
    LinkId id = 0;
    ucp_ep_h endpoint = nullptr;  // null once closed
    bool failed = false;
  };
  // A send or landing that UCX has not finished; recycled, so that steady state allocates nothing. It holds
  // the header, which UCX reads until then: letting UCX copy it (UCP_AM_SEND_FLAG_COPY_HEADER) makes UCX 1.22
  // free the copy twice when a rendezvous is cut off.
  struct Operation {
    enum class Kind { kMessage, kPayload, kLanding };
    Impl* impl = nullptr;
    Kind kind = Kind::kMessage;
    uint64_t token = 0;
    Operation* next_free = nullptr;
    std::array<char, kMaxHeaderBytes> header;
  };

  explicit Impl(Handler* h) : handler(h) {}
  ~Impl() {
    for (Link& link : links) CloseEndpoint(&link, /*force=*/true);
    WaitForClosing(MonotonicNow() + kAbandonTime);
    // A cut-off operation may complete only after its endpoint was closed.
    for (const int64_t end = MonotonicNow() + kAbandonTime; in_flight > 0 && MonotonicNow() < end;) {
      ucp_worker_progress(worker);
    }
    if (worker != nullptr) ucp_worker_destroy(worker);
    if (context != nullptr) ucp_cleanup(context);
  }

  absl::Status Open(const Settings& settings);
  absl::Status Configure(const Settings& settings, ucp_config_t** config);
  absl::Status OpenWorker();
  absl::Status KeepStrangersAway(const std::vector<TcpSocket>& before);
  void CloseEndpoint(Link* link, bool force);
  void WaitForClosing(int64_t deadline);
  void ReportFailedLinks();
  ucs_status_t Receive(absl::string_view header, void* data, size_t bytes, bool rendezvous);
  void Finish(Operation* operation, ucs_status_t status);

  Operation* NewOperation(Operation::Kind kind, uint64_t token) {
    Operation* operation = free_operations;
    if (operation != nullptr) {
      free_operations = operation->next_free;
    } else {
      operation = &operations.emplace_back();
    }
    operation->impl = this;
    operation->kind = kind;
    operation->token = token;
    ++in_flight;
    return operation;
  }

  static ucs_status_t OnActiveMessage(void* arg, const void* header, size_t header_bytes, void* data,
                                      size_t bytes, const ucp_am_recv_param_t* param) {
    Impl* const impl = static_cast<Impl*>(arg);
    impl->receives.Moves();
    return impl->Receive(absl::string_view(static_cast<const char*>(header), header_bytes), data, bytes,
                         (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  }
  static void OnSendDone(void* request, ucs_status_t status, void* user_data) {
    auto* operation = static_cast<Operation*>(user_data);
    operation->impl->Finish(operation, status);
    ucp_request_free(request);
  }
  static void OnReceiveDone(void* request, ucs_status_t status, size_t /*bytes*/, void* user_data) {
    static_cast<Operation*>(user_data)->impl->receives.Moves();
    OnSendDone(request, status, user_data);
  }
  static void OnError(void* arg, ucp_ep_h, ucs_status_t status) {
    auto* link = static_cast<Link*>(arg);
    if (link->failed) return;
    link->failed = true;
    // The endpoint may not be closed within this callback.
    link->impl->failures.emplace_back(link->id, FromUcx(status, "connection"));
  }

  Handler* const handler;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  int event_fd = -1;
  std::string address;
  std::deque<Link> links;  // by LinkId; addresses stay, because UCX holds them
  std::deque<Operation> operations;
  Operation* free_operations = nullptr;
  int in_flight = 0;
  std::vector<std::pair<LinkId, absl::Status>> failures;
  std::vector<void*> closing;  // requests of endpoints that are being closed
  std::vector<TcpSocket> listeners;
  ReceiveWatch receives;
  bool deaf = false;  // since messages do not arrive any more
};

absl::Status UcxMessenger::Impl::Configure(const Settings& settings, ucp_config_t** config) {
  if (ucs_status_t status = ucp_config_read(nullptr, nullptr, config); status != UCS_OK) {
    return FromUcx(status, "reading UCX's configuration");
  }
  for (const auto& [name, value] : settings.required) {
    if (ucs_status_t status = ucp_config_modify(*config, name.c_str(), value.c_str()); status != UCS_OK) {
      return FromUcx(status, absl::StrCat("setting UCX_", name, "=", value));
    }
  }
  for (const auto& [name, value] : settings.wished) ucp_config_modify(*config, name.c_str(), value.c_str());
  return absl::OkStatus();
}

absl::Status UcxMessenger::Impl::Open(const Settings& settings) {
  ucp_config_t* config = nullptr;
  absl::Status status = Configure(settings, &config);
  if (status.ok()) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "weft";
    status = FromUcx(ucp_init(&params, config, &context), absl::StrCat("starting UCX with", Show(settings)));
  }
  if (config != nullptr) ucp_config_release(config);
  if (!status.ok()) return status;
  const std::vector<TcpSocket> listened = ListeningSockets(), connected = ConnectedSockets();
  status = OpenWorker();
  listeners = Without(ListeningSockets(), listened);
  return status.ok() ? KeepStrangersAway(connected) : status;
}

// Lets nobody connect any more, and ends the connections that UCX, whose own thread accepts, has from the
// moment in which everybody could: nothing of them has been read yet. `before` are connections of others.
absl::Status UcxMessenger::Impl::KeepStrangersAway(const std::vector<TcpSocket>& before) {
  std::vector<pollfd> waiting;
  for (const TcpSocket& socket : listeners) {
    if (absl::Status status = weft::AdmitOnly(socket.fd, {}); !status.ok()) return status;
    waiting.push_back({socket.fd, POLLIN, 0});
  }
  const int64_t end = MonotonicNow() + kAcceptTime;
  while (!waiting.empty() && poll(waiting.data(), waiting.size(), 0) > 0) {
    if (MonotonicNow() > end) return absl::UnavailableError("UCX does not accept its connections");
    usleep(1000);
  }
  if (listeners.empty()) return absl::OkStatus();
  for (const TcpSocket& socket : Without(ConnectedSockets(), before)) CutOff(socket.fd);
  return absl::OkStatus();
}

absl::Status UcxMessenger::Impl::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (ucs_status_t s = ucp_worker_create(context, &params, &worker); s != UCS_OK) {
    return FromUcx(s, "creating a UCX worker");
  }
  ucp_am_handler_param_t on_message{};
  on_message.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  on_message.id = kMessageId;
  on_message.cb = &OnActiveMessage;
  on_message.arg = this;
  if (ucs_status_t s = ucp_worker_set_am_recv_handler(worker, &on_message); s != UCS_OK) {
    return FromUcx(s, "setting UCX's message handler");
  }
  if (ucs_status_t s = ucp_worker_get_efd(worker, &event_fd); s != UCS_OK) {
    return FromUcx(s, "getting UCX's event descriptor");
  }
  ucp_address_t* packed = nullptr;
  size_t bytes = 0;
  if (ucs_status_t s = ucp_worker_get_address(worker, &packed, &bytes); s != UCS_OK) {
    return FromUcx(s, "getting the UCX worker's address");
  }
  address.assign(reinterpret_cast<const char*>(packed), bytes);
  ucp_worker_release_address(worker, packed);
  return absl::OkStatus();
}

ucs_status_t UcxMessenger::Impl::Receive(absl::string_view header, void* data, size_t bytes,
                                         bool rendezvous) {
  if (bytes == 0) {
    handler->OnMessage(header);
    return UCS_OK;
  }
  const Handler::Landing landing = handler->OnPayload(header, bytes);
  if (landing.to == nullptr) return UCS_OK;  // null: UCX drops the payload; a rendezvous send completes
  const bool host = landing.place == MemoryPlace::kHost;
  if (!rendezvous && !host) {
    handler->OnLanded(landing.token, absl::InternalError("device memory was not sent by rendezvous"));
    return UCS_OK;
  }
  if (!rendezvous) {
    std::memcpy(landing.to, data, bytes);
    handler->OnLanded(landing.token, absl::OkStatus());
    return UCS_OK;
  }
  Operation* operation = NewOperation(Operation::Kind::kLanding, landing.token);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = &OnReceiveDone;
  param.user_data = operation;
  param.memory_type = MemoryType(landing.place);
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker, data, landing.to, bytes, &param);
  if (request == nullptr) {
    Finish(operation, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    Finish(operation, UCS_PTR_STATUS(request));
  }
  return UCS_INPROGRESS;  // ucp_am_recv_data_nbx has taken the descriptor
}

void UcxMessenger::Impl::Finish(Operation* operation, ucs_status_t status) {
  const Operation::Kind kind = operation->kind;
  const uint64_t token = operation->token;
  operation->next_free = free_operations;
  free_operations = operation;
  --in_flight;
  if (kind == Operation::Kind::kLanding) handler->OnLanded(token, FromUcx(status, "receiving"));
  if (kind == Operation::Kind::kPayload) handler->OnSent(token, FromUcx(status, "sending"));
}

void UcxMessenger::Impl::CloseEndpoint(Link* link, bool force) {
  if (link->endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  ucs_status_ptr_t request = ucp_ep_close_nbx(link->endpoint, &param);
  link->endpoint = nullptr;
  link->failed = true;  // later events of the link are no news
  if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
}

void UcxMessenger::Impl::WaitForClosing(int64_t deadline) {
  while (!closing.empty()) {
    if (ucp_request_check_status(closing.back()) == UCS_INPROGRESS && MonotonicNow() < deadline) {
      ucp_worker_progress(worker);
      continue;
    }
    ucp_request_free(closing.back());  // frees a request in progress when it completes
    closing.pop_back();
  }
}

void UcxMessenger::Impl::ReportFailedLinks() {
  std::vector<std::pair<LinkId, absl::Status>> failed;
  failed.swap(failures);
  for (const auto& [id, cause] : failed) {
    CloseEndpoint(&links[id], /*force=*/true);
    handler->OnLinkFailed(id, cause);
  }
}

UcxMessenger::UcxMessenger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxMessenger::~UcxMessenger() = default;

absl::StatusOr<std::unique_ptr<UcxMessenger>> UcxMessenger::Create(const Settings& settings,
                                                                   Handler* handler) {
  auto impl = std::make_unique<Impl>(handler);
  if (absl::Status status = impl->Open(settings); !status.ok()) return status;
  return std::unique_ptr<UcxMessenger>(new UcxMessenger(std::move(impl)));
}

const std::string& UcxMessenger::address() const { return impl_->address; }

absl::StatusOr<UcxMessenger::LinkId> UcxMessenger::Connect(absl::string_view address) {
  // The lower half of an address's first byte gives its format. UCX ends the process where it does not know
  // that format.
  constexpr uint8_t kFormatBits = 0xf;
  if (address.empty() || ((address[0] ^ impl_->address[0]) & kFormatBits) != 0) {
    return absl::InvalidArgumentError(
        "its address is not of the format of this UCX; run the same version of Weft on both sides");
  }
  const LinkId id = static_cast<LinkId>(impl_->links.size());
  Impl::Link& link = impl_->links.emplace_back(Impl::Link{impl_.get(), id});
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Impl::OnError;
  params.err_handler.arg = &link;
  if (ucs_status_t status = ucp_ep_create(impl_->worker, &params, &link.endpoint); status != UCS_OK) {
    link.endpoint = nullptr;
    link.failed = true;
    return absl::FailedPreconditionError(absl::StrCat("connecting: ", ucs_status_string(status)));
  }
  return id;
}

void UcxMessenger::Disconnect(LinkId link) { impl_->CloseEndpoint(&impl_->links[link], /*force=*/true); }

void UcxMessenger::Send(LinkId id, absl::string_view header, const Payload& payload) {
  if (header.size() > kMaxHeaderBytes) {
    std::fprintf(stderr, "weft: a message header of %zu bytes\n", header.size());
    std::abort();
  }
  Impl::Link& link = impl_->links[id];
  if (link.failed || link.endpoint == nullptr) {
    if (payload.bytes > 0) {
      impl_->handler->OnSent(payload.token, absl::UnavailableError("the connection is closed"));
    }
    return;
  }
  using Kind = Impl::Operation::Kind;
  Impl::Operation* operation =
      impl_->NewOperation(payload.bytes > 0 ? Kind::kPayload : Kind::kMessage, payload.token);
  std::memcpy(operation->header.data(), header.data(), header.size());
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = MemoryType(payload.place);
  if (payload.place == MemoryPlace::kDevice) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  param.cb.send = &Impl::OnSendDone;
  param.user_data = operation;
  ucs_status_ptr_t request = ucp_am_send_nbx(link.endpoint, kMessageId, operation->header.data(),
                                             header.size(), payload.data, payload.bytes, &param);
  // A pointer means that the callback follows. The error handler of a link reports its errors, too.
  if (!UCS_PTR_IS_PTR(request)) impl_->Finish(operation, UCS_PTR_STATUS(request));
}

std::vector<std::string> UcxMessenger::Transports(LinkId id) const {
  const Impl::Link& link = impl_->links[id];
  if (link.endpoint == nullptr) return {};
  std::array<ucp_transport_entry_t, kMaxTransports> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries.data();
  attributes.transports.num_entries = entries.size();
  attributes.transports.entry_size = sizeof(entries[0]);
  if (ucp_ep_query(link.endpoint, &attributes) != UCS_OK) return {};
  std::vector<std::string> names;
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    names.emplace_back(entries[i].transport_name);
  }
  return names;
}

bool UcxMessenger::KnowsMemory(absl::string_view kind) const {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(impl_->context, &attributes) != UCS_OK) return false;
  for (int type = 0; type < UCS_MEMORY_TYPE_LAST; ++type) {
    if (kind == ucs_memory_type_names[type]) return (attributes.memory_types >> type & 1) != 0;
  }
  return false;
}

std::vector<std::string> UcxMessenger::sources() const {
  std::vector<std::string> sources;
  for (const TcpSocket& socket : impl_->listeners) {
    std::string address = OwnAddress(socket.fd);
    if (!address.empty()) sources.push_back(std::move(address));
  }
  return sources;
}

absl::Status UcxMessenger::AdmitOnly(const std::vector<std::string>& addresses) {
  for (const TcpSocket& socket : impl_->listeners) {
    if (!Listens(socket)) continue;  // Health reports it
    if (absl::Status status = weft::AdmitOnly(socket.fd, addresses); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool UcxMessenger::hears() const { return !impl_->deaf; }

void UcxMessenger::PeerEnded() { impl_->receives.PeerEnded(MonotonicNow()); }

absl::Status UcxMessenger::Health() const {
  if (impl_->deaf) {
    return absl::UnavailableError(
        "messages do not arrive here any more, as if a process was killed while it wrote one; a new process "
        "in "
        "the place of this one has a new queue");
  }
  for (const TcpSocket& socket : impl_->listeners) {
    if (Listens(socket)) continue;
    return absl::ResourceExhaustedError(
        "the socket on which other processes connect to this one's data plane is gone: UCX gives it up when "
        "no "
        "file descriptor is left; raise the limit of open files (ulimit -n)");
  }
  return absl::OkStatus();
}

int UcxMessenger::Progress() {
  int done = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    const unsigned n = ucp_worker_progress(impl_->worker);
    if (n == 0) break;
    done += static_cast<int>(n);
  }
  if (!impl_->failures.empty()) {
    done += static_cast<int>(impl_->failures.size());
    impl_->ReportFailedLinks();
  }
  // Closed endpoints are rare; look at the last one only.
  while (!impl_->closing.empty() && ucp_request_check_status(impl_->closing.back()) != UCS_INPROGRESS) {
    ucp_request_free(impl_->closing.back());
    impl_->closing.pop_back();
  }
  return done;
}

int UcxMessenger::event_fd() const { return impl_->event_fd; }

bool UcxMessenger::Arm() {
  if (!impl_->failures.empty()) return false;
  if (ucp_worker_arm(impl_->worker) == UCS_OK) {
    impl_->receives.Moves();
    return true;
  }
  const int64_t now = MonotonicNow();
  impl_->receives.LookedInVain(now);
  impl_->deaf = impl_->deaf || impl_->receives.IsStuck(now);
  return false;
}

void UcxMessenger::Close(int64_t deadline) {
  for (Impl::Link& link : impl_->links) impl_->CloseEndpoint(&link, /*force=*/false);
  impl_->WaitForClosing(deadline);
}

}  // namespace weft
