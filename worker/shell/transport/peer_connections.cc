#include "worker/shell/transport/peer_connections.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

PeerConnections::~PeerConnections() {
  for (auto& [sender, connection] : connections_) {
    if (connection.process_fd >= 0) close(connection.process_fd);
  }
  if (wait_set_ >= 0) close(wait_set_);
}

absl::Status PeerConnections::OpenWaitSet() {
  wait_set_ = epoll_create1(EPOLL_CLOEXEC);
  if (wait_set_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("epoll of the transport: ", std::strerror(errno)));
}

absl::Status PeerConnections::AddToWaitSet(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(wait_set_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("epoll of the transport: ", std::strerror(errno)));
}

PeerConnection* PeerConnections::Find(uint64_t sender) {
  auto it = connections_.find(sender);
  return it == connections_.end() ? nullptr : &it->second;
}

std::optional<uint64_t> PeerConnections::SenderOf(Messenger::LinkId link) const {
  for (const auto& [sender, connection] : connections_) {
    if (connection.link == link) return sender;
  }
  return std::nullopt;
}

absl::Status PeerConnections::Open(const TransportAddress& address, Messenger* messenger) {
  const absl::StatusOr<int> process = OpenProcess(address.process);
  if (absl::IsUnavailable(process.status())) return process.status();
  const absl::StatusOr<Messenger::LinkId> link = messenger->Connect(address.messenger);
  if (!link.ok()) {
    if (process.ok()) close(*process);
    return link.status();
  }
  PeerConnection connection;
  connection.link = *link;
  connection.pid = address.process.pid;
  if (process.ok()) {
    connection.process_fd = *process;
    // If this fails, the end of the process is still seen, at the next look instead of at once.
    AddToWaitSet(*process).IgnoreError();
  }
  connections_[address.sender] = connection;
  return absl::OkStatus();
}

void PeerConnections::End(uint64_t sender, Messenger* messenger) {
  PeerConnection* connection = Find(sender);
  if (connection == nullptr) return;
  connection->open = false;
  // Closing also takes it out of the wait set.
  if (connection->process_fd >= 0) close(std::exchange(connection->process_fd, -1));
  messenger->Disconnect(connection->link);
}

const std::vector<uint64_t>& PeerConnections::FindEnded() {
  ended_.clear();
  polled_.clear();
  polled_senders_.clear();
  for (const auto& [sender, connection] : connections_) {
    if (connection.process_fd < 0) continue;
    polled_.push_back({connection.process_fd, POLLIN, 0});
    polled_senders_.push_back(sender);
  }
  if (polled_.empty() || poll(polled_.data(), polled_.size(), 0) <= 0) return ended_;
  for (size_t i = 0; i < polled_.size(); ++i) {
    if (polled_[i].revents != 0) ended_.push_back(polled_senders_[i]);
  }
  return ended_;
}

void PeerConnections::MarkBroken(uint64_t sender, int64_t verdict, std::string cause) {
  PeerConnection* connection = Find(sender);
  // After a goodbye the link is expected to end; the process may still be reading our memory.
  if (connection == nullptr || !connection->open || connection->broken) return;
  connection->broken = true;
  broken_.push_back({sender, verdict, std::move(cause)});
}

int64_t PeerConnections::next_verdict() const {
  return broken_.empty() ? std::numeric_limits<int64_t>::max() : broken_.front().verdict;
}

std::optional<std::pair<uint64_t, std::string>> PeerConnections::TakeBroken(int64_t now) {
  while (next_verdict() <= now) {
    BrokenLink link = std::move(broken_.front());
    broken_.pop_front();
    if (Find(link.sender)->open) return std::make_pair(link.sender, std::move(link.cause));
  }
  return std::nullopt;
}

}  // namespace weft
