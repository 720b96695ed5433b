// Adapts UCX: one worker that exchanges active messages (messenger.h).
//
// A payload of device memory always goes by rendezvous, so that its destination is known before a byte comes,
// and this side never reads or writes it on the host. UCX finds out the kind of memory by asking the driver.
//
// UCX trusts every process that can connect to it; peer_filter.h says which can. It installs no signal
// handlers. A broken link also completes its landings with the cause.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/shell/transport/messenger.h"

namespace weft {

class UcxMessenger final : public Messenger {
 public:
  // UCX variables, as {"TLS", "tcp"}. UCX must know the `required` ones; the others may be missing in its
  // build.
  struct Settings {
    std::vector<std::pair<std::string, std::string>> required, wished;
  };

  // Creates a messenger. `handler` outlives it. Unavailable, with the settings, if UCX has no way to
  // communicate.
  static absl::StatusOr<std::unique_ptr<UcxMessenger>> Create(const Settings& settings, Handler* handler);
  ~UcxMessenger() override;

  const std::string& address() const override;
  std::vector<std::string> sources() const override;
  absl::Status AdmitOnly(const std::vector<std::string>& addresses) override;

  absl::StatusOr<LinkId> Connect(absl::string_view address) override;
  void Disconnect(LinkId link) override;
  void Send(LinkId link, absl::string_view header, const Payload& payload) override;

  std::vector<std::string> Transports(LinkId link) const override;
  bool KnowsMemory(absl::string_view kind) const override;

  // Health is not OK once UCX has given up the socket by which others connect to it, or messages do not
  // arrive here any more (receive_watch.h).
  absl::Status Health() const override;
  bool hears() const override;
  void PeerEnded() override;

  int Progress() override;
  int event_fd() const override;
  bool Arm() override;
  void Close(int64_t deadline) override;

 private:
  struct Impl;
  explicit UcxMessenger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns the version of the UCX that the process runs with, as "1.19.0".
std::string UcxVersion();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_MESSENGER_H_
