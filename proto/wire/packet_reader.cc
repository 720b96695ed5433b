#include "proto/wire/packet_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/wire/check.h"
#include "proto/wire/limits.h"

namespace weft {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kRanksField = v1::Report::kRanksFieldNumber;
static_assert(kRanksField == int{v1::Finished::kRanksFieldNumber} &&
              kRanksField == int{v1::Spans::kRanksFieldNumber});

// Returns true for a payload that has a part for each rank.
bool HasRanks(int field) {
  return field == v1::WorkerPayload::kReportFieldNumber || field == v1::WorkerPayload::kFinishedFieldNumber ||
         field == v1::WorkerPayload::kSpansFieldNumber;
}

// Counts the parts of a message without making it. Levels: the message, a payload, a report.
class Counts {
 public:
  // Returns false if the bytes are not a message.
  bool Add(CodedInputStream* in, int level) {
    while (const uint32_t tag = in->ReadTag()) {
      const int field = WireFormatLite::GetTagFieldNumber(tag);
      const bool nested = WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
      const bool payload = level == 0 && field == v1::WorkerMessage::kPayloadsFieldNumber;
      const bool report = level == 1 && HasRanks(field);
      payloads_ += nested && payload;
      ranks_ += nested && level == 2 && field == kRanksField;
      if (!nested || !(payload || report)) {
        if (!WireFormatLite::SkipField(in, tag)) return false;
        continue;
      }
      uint32_t length = 0;
      if (!in->ReadVarint32(&length)) return false;
      const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
      if (!Add(in, level + 1) || in->BytesUntilLimit() != 0) return false;
      in->PopLimit(limit);
    }
    return in->ConsumedEntireMessage();
  }
  uint64_t payloads() const { return payloads_; }
  uint64_t ranks() const { return ranks_; }

 private:
  uint64_t payloads_ = 0, ranks_ = 0;
};

absl::Status NoMessage() { return absl::InvalidArgumentError("a message is not of this protocol"); }

}  // namespace

absl::Status ReadWorkerMessage(grpc::ByteBuffer* bytes, bool greeted, v1::WorkerMessage* message) {
  const size_t most = greeted ? kMaxWorkerMessageBytes : kMaxGreetingBytes;
  if (bytes->Length() > most) {
    return absl::InvalidArgumentError(absl::StrCat("a message has ", bytes->Length(), " bytes, but at most ",
                                                   most,
                                                   greeted ? " are allowed" : " are allowed before Hello"));
  }
  Counts counts;
  {
    grpc::ProtoBufferReader reader(bytes);
    CodedInputStream in(&reader);
    if (!counts.Add(&in, 0)) return NoMessage();
  }
  WEFT_WIRE_RETURN_IF_ERROR(wire::CheckAtMost("the number of payloads", counts.payloads(), kMaxPayloads));
  WEFT_WIRE_RETURN_IF_ERROR(
      wire::CheckAtMost("the number of ranks of its reports", counts.ranks(), kMaxRanks));
  if (!grpc::SerializationTraits<v1::WorkerMessage>::Deserialize(bytes, message).ok()) return NoMessage();
  return absl::OkStatus();
}

}  // namespace weft
