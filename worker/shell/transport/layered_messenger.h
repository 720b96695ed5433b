// Reaches peers of this machine by one messenger and all others by a second one.
//
// Its address names the machine, so that a peer knows which of the two to try; where two processes of one
// machine share no memory, as in containers, the first fails and the second carries the link. Links have
// numbers of their own. The rest is as in messenger.h.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_LAYERED_MESSENGER_H_
#define WEFT_WORKER_SHELL_TRANSPORT_LAYERED_MESSENGER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/shell/transport/messenger.h"

namespace weft {

using OpenLayer = std::function<absl::StatusOr<std::unique_ptr<Messenger>>(Messenger::Handler* handler)>;

// Opens both messengers. `machine` is the same for processes that may share memory. Failure: as the layers.
absl::StatusOr<std::unique_ptr<Messenger>> OpenLayeredMessenger(const std::string& machine,
                                                                const OpenLayer& near, const OpenLayer& far,
                                                                Messenger::Handler* handler);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_LAYERED_MESSENGER_H_
