#include "worker/shell/transport/layered_messenger.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/byte_stream.h"

namespace weft {
namespace {

enum Layer : size_t { kNear, kFar };
constexpr size_t kLayers = 2;

struct LayeredAddress {
  absl::string_view machine, near, far;
};

std::string Encode(const LayeredAddress& address) {
  std::array<char, 2 * sizeof(uint32_t)> sizes;
  ByteWriter writer(sizes.data());
  writer.Put(static_cast<uint32_t>(address.machine.size()));
  writer.Put(static_cast<uint32_t>(address.near.size()));
  return absl::StrCat(absl::string_view(sizes.data(), sizes.size()), address.machine, address.near,
                      address.far);
}

// Returns false for bytes that are no such address.
bool Decode(absl::string_view bytes, LayeredAddress* address) {
  ByteReader in(bytes);
  const auto machine = in.Get<uint32_t>(), near = in.Get<uint32_t>();
  if (in.short_of_bytes()) return false;
  const absl::string_view rest = bytes.substr(2 * sizeof(uint32_t));
  if (size_t{machine} + near > rest.size()) return false;
  *address = {rest.substr(0, machine), rest.substr(machine, near), rest.substr(size_t{machine} + near)};
  return true;
}

class LayeredMessenger final : public Messenger {
 public:
  LayeredMessenger(std::string machine, Handler* handler)
      : machine_(std::move(machine)), near_(this, kNear, handler), far_(this, kFar, handler) {}
  ~LayeredMessenger() override {
    for (std::unique_ptr<Messenger>& layer : layers_) layer.reset();
    if (epoll_ >= 0) close(epoll_);
  }

  absl::Status Open(const OpenLayer& near, const OpenLayer& far) {
    absl::StatusOr<std::unique_ptr<Messenger>> first = near(&near_);
    if (!first.ok()) return first.status();
    absl::StatusOr<std::unique_ptr<Messenger>> second = far(&far_);
    if (!second.ok()) return second.status();
    layers_ = {*std::move(first), *std::move(second)};
    address_ = Encode({machine_, layers_[kNear]->address(), layers_[kFar]->address()});
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    for (const std::unique_ptr<Messenger>& layer : layers_) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, layer->event_fd(), &event) != 0) {
        return absl::ResourceExhaustedError(absl::StrCat("epoll of the messengers: ", std::strerror(errno)));
      }
    }
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

  absl::StatusOr<LinkId> Connect(absl::string_view bytes) override {
    LayeredAddress address;
    if (!Decode(bytes, &address)) {
      return absl::InvalidArgumentError("its address is not of this version of Weft's data plane");
    }
    if (address.machine == machine_) {
      absl::StatusOr<LinkId> near = layers_[kNear]->Connect(address.near);
      if (near.ok()) return Add(kNear, *near);
      if (!absl::IsFailedPrecondition(near.status())) return near;
    }
    absl::StatusOr<LinkId> far = layers_[kFar]->Connect(address.far);
    if (!far.ok()) return far;
    return Add(kFar, *far);
  }
  void Disconnect(LinkId link) override { Of(link).Disconnect(links_[link].id); }
  void Send(LinkId link, absl::string_view header, const Payload& payload) override {
    Of(link).Send(links_[link].id, header, payload);
  }
  std::vector<std::string> Transports(LinkId link) const override {
    return Of(link).Transports(links_[link].id);
  }
  bool KnowsMemory(absl::string_view kind) const override { return layers_[kNear]->KnowsMemory(kind); }

  absl::Status Health() const override {
    const absl::Status near = layers_[kNear]->Health();
    return near.ok() ? layers_[kFar]->Health() : near;
  }
  bool hears() const override { return layers_[kNear]->hears(); }
  void PeerEnded() override { layers_[kNear]->PeerEnded(); }

  int Progress() override { return layers_[kNear]->Progress() + layers_[kFar]->Progress(); }
  int event_fd() const override { return epoll_; }
  bool Arm() override {
    const bool near = layers_[kNear]->Arm(), far = layers_[kFar]->Arm();
    return near && far;
  }
  void Close(int64_t deadline) override {
    for (const std::unique_ptr<Messenger>& layer : layers_) layer->Close(deadline);
  }

 private:
  // Hands on what a layer says, with this messenger's number of the link.
  class LayerHandler final : public Handler {
   public:
    LayerHandler(LayeredMessenger* owner, Layer layer, Handler* handler)
        : owner_(owner), layer_(layer), handler_(handler) {}
    void OnMessage(absl::string_view header) override { handler_->OnMessage(header); }
    Landing OnPayload(absl::string_view header, size_t bytes) override {
      return handler_->OnPayload(header, bytes);
    }
    void OnLanded(uint64_t token, const absl::Status& status) override { handler_->OnLanded(token, status); }
    void OnSent(uint64_t token, const absl::Status& status) override { handler_->OnSent(token, status); }
    void OnLinkFailed(LinkId id, const absl::Status& cause) override {
      const std::vector<Link>& links = owner_->links_;
      for (size_t i = 0; i < links.size(); ++i) {
        if (links[i].layer != layer_ || links[i].id != id) continue;
        return handler_->OnLinkFailed(static_cast<LinkId>(i), cause);
      }
    }

   private:
    LayeredMessenger* const owner_;
    const Layer layer_;
    Handler* const handler_;
  };
  struct Link {
    Layer layer = kNear;
    LinkId id = 0;  // number of the layer's own
  };

  LinkId Add(Layer layer, LinkId id) {
    links_.push_back({layer, id});
    return static_cast<LinkId>(links_.size() - 1);
  }
  Messenger& Of(LinkId link) const { return *layers_[links_[link].layer]; }

  const std::string machine_;
  LayerHandler near_, far_;
  std::string address_;
  int epoll_ = -1;
  std::vector<Link> links_;
  std::array<std::unique_ptr<Messenger>, kLayers> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Messenger>> OpenLayeredMessenger(const std::string& machine,
                                                                const OpenLayer& near, const OpenLayer& far,
                                                                Messenger::Handler* handler) {
  auto messenger = std::make_unique<LayeredMessenger>(machine, handler);
  if (absl::Status status = messenger->Open(near, far); !status.ok()) return status;
  return std::unique_ptr<Messenger>(std::move(messenger));
}

}  // namespace weft
