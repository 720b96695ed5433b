// Checks the bytes of a message from a worker before they become objects.
//
// Two bytes on the wire can become a thousand in memory: an empty report of a rank is an object with nine
// maps. So the size of a message, and how many payloads and ranks it holds, are bounded on its bytes. A
// session that has not introduced itself may send little: its Hello. Failure: InvalidArgument with the number
// and the bound.
#ifndef WEFT_PROTO_WIRE_PACKET_READER_H_
#define WEFT_PROTO_WIRE_PACKET_READER_H_

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "weft/v1/session.pb.h"

namespace weft {

// Reads a message. `greeted` is true if a message of the session has arrived before.
absl::Status ReadWorkerMessage(grpc::ByteBuffer* bytes, bool greeted, v1::WorkerMessage* message);

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_PACKET_READER_H_
