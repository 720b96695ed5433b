#include "worker/shell/transport/transport_message.h"

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/byte_stream.h"

namespace weft {
namespace {

using Type = TransportMessage::Type;

constexpr uint16_t kMagic = 0x5705;  // 'W', format 5
// Virtual addresses have 47 bits, so no tensor or segment can be larger; sums of two such numbers cannot
// overflow.
constexpr uint64_t kMaxLength = uint64_t{1} << 47;
constexpr int64_t kMaxTime = int64_t{1} << 61;  // differences of such times cannot overflow

void PutKey(const TensorKey& key, ByteWriter* out) {
  out->Put(key.run);
  out->Put(key.epoch);
  out->Put(key.step);
  out->Put(key.stage);
  out->Put(key.microbatch);
  out->Put(key.version);
  out->Put(key.part);
  out->Put(key.producer);
  out->Put(key.consumer);
  out->Put(static_cast<uint8_t>(key.kind));
  out->Put(key.use);
}

absl::Status GetKey(ByteReader* in, TensorKey* key) {
  key->run = in->Get<uint64_t>();
  key->epoch = in->Get<uint64_t>();
  key->step = in->Get<int32_t>();
  key->stage = in->Get<int32_t>();
  key->microbatch = in->Get<int32_t>();
  key->version = in->Get<int32_t>();
  key->part = in->Get<int32_t>();
  key->producer = in->Get<Rank>();
  key->consumer = in->Get<Rank>();
  const auto kind = in->Get<uint8_t>();
  if (kind >= kTensorKinds) return absl::InvalidArgumentError(absl::StrCat("unknown tensor kind ", kind));
  key->kind = static_cast<TensorKind>(kind);
  key->use = in->Get<uint8_t>();
  return absl::OkStatus();
}

void PutShape(const TensorShape& shape, uint64_t bytes, ByteWriter* out) {
  out->Put(bytes);
  out->Put(static_cast<uint8_t>(shape.type));
  out->Put(shape.dims);
  for (int i = 0; i < shape.dims; ++i) out->Put(shape.size[i]);
}

absl::Status GetShape(ByteReader* in, TensorShape* shape, uint64_t* bytes) {
  *bytes = in->Get<uint64_t>();
  const auto type = in->Get<uint8_t>();
  if (type > static_cast<uint8_t>(DataType::kUInt8)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown data type ", type));
  }
  *shape = TensorShape{};
  shape->type = static_cast<DataType>(type);
  shape->dims = in->Get<uint8_t>();
  if (shape->dims > TensorShape::kMaxDims) {
    return absl::InvalidArgumentError(absl::StrCat("shape of ", shape->dims, " dimensions"));
  }
  for (int i = 0; i < shape->dims; ++i) shape->size[i] = in->Get<int64_t>();
  if (in->short_of_bytes()) return absl::InvalidArgumentError("message ends within its shape");
  return CheckShape(*shape, *bytes);
}

absl::Status GetMemoryPlace(ByteReader* in, MemoryPlace* place) {
  const auto number = in->Get<uint8_t>();
  if (number > static_cast<uint8_t>(MemoryPlace::kDevice)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown memory place ", number));
  }
  *place = static_cast<MemoryPlace>(number);
  return absl::OkStatus();
}

void PutTimes(const TransportMessage& message, ByteWriter* out) {
  out->Put(message.made_ns);
  out->Put(message.sent_ns);
}

absl::Status GetTimes(ByteReader* in, TransportMessage* message) {
  message->made_ns = in->Get<int64_t>();
  message->sent_ns = in->Get<int64_t>();
  if (message->made_ns < 0 || message->made_ns > message->sent_ns || message->sent_ns > kMaxTime) {
    return absl::InvalidArgumentError(
        absl::StrCat("made at ", message->made_ns, " and sent at ", message->sent_ns));
  }
  return absl::OkStatus();
}

void PutPlace(const TransportMessage& message, ByteWriter* out) {
  out->Put(message.segment.id);
  out->Put(message.segment.inode);
  out->Put(message.segment.bytes);
  out->Put(message.segment.descriptor);
  out->Put(message.offset);
}

absl::Status GetPlace(ByteReader* in, TransportMessage* message) {
  message->segment.id = in->Get<uint64_t>();
  message->segment.inode = in->Get<uint64_t>();
  message->segment.bytes = in->Get<uint64_t>();
  message->segment.descriptor = in->Get<int32_t>();
  message->offset = in->Get<uint64_t>();
  const bool fits = message->segment.bytes <= kMaxLength && message->offset <= message->segment.bytes &&
                    message->bytes <= message->segment.bytes - message->offset;
  if (!fits || message->bytes == 0 || message->segment.descriptor < 0) {
    return absl::InvalidArgumentError(absl::StrCat(message->bytes, " bytes at ", message->offset,
                                                   " do not lie in a segment of ", message->segment.bytes));
  }
  return absl::OkStatus();
}

void PutOffers(const TransportMessage& message, ByteWriter* out) {
  out->Put(message.offer_count);
  for (uint32_t i = 0; i < message.offer_count; ++i) out->Put(message.offers[i]);
}

absl::Status GetOffers(ByteReader* in, TransportMessage* message) {
  message->offer_count = in->Get<uint32_t>();
  if (message->offer_count > TransportMessage::kMaxOffers) {
    return absl::InvalidArgumentError(absl::StrCat(message->offer_count, " offers in one message"));
  }
  for (uint32_t i = 0; i < message->offer_count; ++i) message->offers[i] = in->Get<uint64_t>();
  return absl::OkStatus();
}

absl::Status GetFlag(ByteReader* in, bool* flag) {
  const auto byte = in->Get<uint8_t>();
  *flag = byte == 1;
  if (byte > 1) return absl::InvalidArgumentError(absl::StrCat("a flag of ", static_cast<int>(byte)));
  return absl::OkStatus();
}

absl::Status GetBody(ByteReader* in, TransportMessage* message) {
  absl::Status status;
  switch (message->type) {
    case Type::kWant:
      status = GetKey(in, &message->key);
      if (status.ok()) status = GetFlag(in, &message->in_place_ok);
      if (status.ok()) status = GetFlag(in, &message->again);
      return status;
    case Type::kCancel:
      return GetKey(in, &message->key);
    case Type::kInPlace:
    case Type::kData:
      status = GetKey(in, &message->key);
      if (status.ok()) status = GetShape(in, &message->shape, &message->bytes);
      if (status.ok()) status = GetTimes(in, message);
      message->offer = in->Get<uint64_t>();
      if (status.ok() && message->type == Type::kData) status = GetMemoryPlace(in, &message->place);
      if (status.ok() && message->type == Type::kInPlace) status = GetPlace(in, message);
      return status;
    case Type::kRelease:
    case Type::kCopyInstead:
      return GetOffers(in, message);
    case Type::kSegmentGone:
      message->segment.id = in->Get<uint64_t>();
      return absl::OkStatus();
    case Type::kGoodbye:
    case Type::kPing:
    case Type::kPong:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown message type ", static_cast<int>(message->type)));
}

}  // namespace

absl::Status CheckShape(const TensorShape& shape, uint64_t bytes) {
  if (shape.dims > TensorShape::kMaxDims) {
    return absl::InvalidArgumentError(absl::StrCat("shape of ", shape.dims, " dimensions"));
  }
  if (bytes == 0 && shape.dims == 0) return absl::OkStatus();
  uint64_t product = ElementBytes(shape.type);
  for (int i = 0; i < shape.dims; ++i) {
    const int64_t size = shape.size[i];
    if (size < 0 || static_cast<uint64_t>(size) > kMaxLength ||
        __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", i, " of size ", size));
    }
  }
  if (product != bytes || bytes > kMaxLength) {
    return absl::InvalidArgumentError(absl::StrCat("a shape of ", product, " bytes with ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

size_t Encode(const TransportMessage& message, char* out) {
  ByteWriter writer(out);
  writer.Put(kMagic);
  writer.Put(static_cast<uint8_t>(message.type));
  writer.Put(message.sender);
  switch (message.type) {
    case Type::kWant:
      PutKey(message.key, &writer);
      writer.Put(static_cast<uint8_t>(message.in_place_ok));
      writer.Put(static_cast<uint8_t>(message.again));
      break;
    case Type::kCancel:
      PutKey(message.key, &writer);
      break;
    case Type::kInPlace:
    case Type::kData:
      PutKey(message.key, &writer);
      PutShape(message.shape, message.bytes, &writer);
      PutTimes(message, &writer);
      writer.Put(message.offer);
      if (message.type == Type::kData) writer.Put(static_cast<uint8_t>(message.place));
      if (message.type == Type::kInPlace) PutPlace(message, &writer);
      break;
    case Type::kRelease:
    case Type::kCopyInstead:
      PutOffers(message, &writer);
      break;
    case Type::kSegmentGone:
      writer.Put(message.segment.id);
      break;
    case Type::kGoodbye:
    case Type::kPing:
    case Type::kPong:
      break;
  }
  return writer.size();
}

absl::Status Decode(absl::string_view bytes, TransportMessage* message) {
  ByteReader in(bytes);
  if (in.Get<uint16_t>() != kMagic) return absl::InvalidArgumentError("not a message of this transport");
  message->type = static_cast<Type>(in.Get<uint8_t>());
  message->sender = in.Get<uint64_t>();
  if (absl::Status status = GetBody(&in, message); !status.ok()) return status;
  if (in.short_of_bytes())
    return absl::InvalidArgumentError(absl::StrCat("message cut at ", bytes.size(), " bytes"));
  if (!in.at_end()) return absl::InvalidArgumentError("bytes behind the end of a message");
  return absl::OkStatus();
}

}  // namespace weft
