// Takes messages out of what a test has kept of a core's words to its workers.
#ifndef WEFT_TESTS_UNIT_HEARD_H_
#define WEFT_TESTS_UNIT_HEARD_H_

#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "proto/session/messages.h"

namespace weft {

// Takes the first message of the kind out of the queue; nothing if there is none.
template <typename Message>
std::optional<Message> TakeFirst(std::deque<FromCoordinator>* queue) {
  for (auto it = queue->begin(); it != queue->end(); ++it) {
    if (auto* m = std::get_if<Message>(&*it)) {
      Message found = std::move(*m);
      queue->erase(it);
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_HEARD_H_
