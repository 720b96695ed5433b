// Decodes any bytes as a message of the session or of the run API, as they come from the network. An accepted
// message must be accepted again after it was encoded: the process that hands it on is not refused.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/require.h"
#include "proto/wire/runs_codec.h"
#include "proto/wire/session_codec.h"

namespace weft {
namespace {

// Decodes the packet, and each of its messages again from what it encodes to.
template <typename Value, typename Wire, typename Payload>
void TryPacket(const uint8_t* data, int size) {
  Wire in;
  if (!in.ParseFromArray(data, size)) return;
  const absl::StatusOr<Packet<Value>> packet = wire::Decode(1, in);
  if (!packet.ok()) return;
  for (const Value& message : packet->messages) {
    Payload out;
    wire::Encode(message, &out);
    const auto again = wire::Decode(out);
    Require(again.ok(), "what was decoded can be encoded");
    Require(again->index() == message.index(), "it is a message of the same kind");
  }
}

template <typename Wire>
void TryAnswer(const uint8_t* data, int size) {
  Wire in;
  if (in.ParseFromArray(data, size)) wire::Decode(in).status().IgnoreError();
}

// Encodes what is accepted too.
template <typename Wire>
void TryRequest(const uint8_t* data, int size) {
  Wire in;
  if (!in.ParseFromArray(data, size)) return;
  const auto value = wire::Decode(in);
  if (!value.ok()) return;
  Wire out;
  wire::Encode(*value, &out);
  Require(wire::Decode(out).ok(), "what was decoded can be encoded");
}

}  // namespace
}  // namespace weft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weft::FromCoordinator;
  using weft::FromWorker;
  using weft::TryAnswer;
  using weft::TryPacket;
  using weft::TryRequest;
  namespace v1 = weft::v1;
  if (size == 0 || size > (1 << 20)) return 0;
  const uint8_t* const bytes = data + 1;
  const int rest = static_cast<int>(size) - 1;
  switch (data[0] % 9) {
    case 0:
      TryPacket<FromWorker, v1::WorkerMessage, v1::WorkerPayload>(bytes, rest);
      break;
    case 1:
      TryPacket<FromCoordinator, v1::CoordinatorMessage, v1::CoordinatorPayload>(bytes, rest);
      break;
    case 2:
      TryRequest<v1::SubmitRequest>(bytes, rest);
      break;
    case 3:
      TryRequest<v1::MoveRequest>(bytes, rest);
      break;
    case 4:
      TryAnswer<v1::Run>(bytes, rest);
      break;
    case 5:
      TryRequest<v1::Worker>(bytes, rest);
      break;
    case 6:
      TryAnswer<v1::RunEvent>(bytes, rest);
      break;
    case 7:
      TryRequest<v1::LogsResponse>(bytes, rest);
      break;
    default:
      TryRequest<v1::WaitsResponse>(bytes, rest);
      break;
  }
  return 0;
}
