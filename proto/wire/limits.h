// Bounds every decoded message. A peer that exceeds a bound is refused with a sentence that names the field.
#ifndef WEFT_PROTO_WIRE_LIMITS_H_
#define WEFT_PROTO_WIRE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace weft {

inline constexpr size_t kMaxSpecBytes = 1 << 20;
inline constexpr size_t kMaxNameBytes = 63;
inline constexpr size_t kMaxTextBytes = 16 << 10;    // reasons, labels, hosts, paths
inline constexpr size_t kMaxAddressBytes = 4 << 10;  // bytes of a transport's address
inline constexpr size_t kMaxDeviceBytes = 256;       // bytes of each name of a device
inline constexpr size_t kMaxGroupIdBytes = 4 << 10;
inline constexpr int kMaxJobs = 1 << 16;      // jobs of one message
inline constexpr int kMaxHashes = 1 << 18;    // hashes of one message
inline constexpr int kMaxPayloads = 1 << 16;  // payloads of one packet
inline constexpr int kMaxRanks = 1 << 16;
inline constexpr int kMaxProcesses = 1 << 14;
inline constexpr int kMaxStages = 1 << 16;
inline constexpr int kMaxParts = 1 << 20;  // micro-batches and members
inline constexpr int kMaxSteps = 1 << 30;
inline constexpr int64_t kMaxWireTime = int64_t{1} << 61;  // the sum of two such values is still a valid time
inline constexpr uint64_t kMaxJointBytes = uint64_t{1} << 48;
inline constexpr int kMaxReportKeys = 64;  // keys of one map of a report
inline constexpr uint32_t kMaxCheckpointsKept = 1'000'000;
inline constexpr uint32_t kMaxAskedSnapshots = 1 << 12;
inline constexpr int kMaxLogLines = 1 << 10;     // lines of one message
inline constexpr size_t kMaxLogBytes = 4 << 10;  // bytes of a line
inline constexpr uint32_t kMaxCredit = 1 << 16;

// Bytes of one packet that a writer aims at, and the most that a reader accepts.
inline constexpr size_t kPacketBytes = 1 << 20;
inline constexpr int kMaxMessageBytes = 16 << 20;          // from the coordinator
inline constexpr size_t kMaxWorkerMessageBytes = 4 << 20;  // from a worker
inline constexpr size_t kMaxGreetingBytes = 32 << 10;      // from a worker before its Hello
inline constexpr int kMaxReceivedBytes = 8 << 20;          // bytes of any message, at the coordinator
// Bytes of messages of one session that the peer has not acknowledged.
inline constexpr size_t kMaxBacklogBytes = size_t{64} << 20;

}  // namespace weft

#endif  // WEFT_PROTO_WIRE_LIMITS_H_
