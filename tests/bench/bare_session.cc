#include "tests/bench/bare_session.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/monotonic_clock.h"
#include "base/net/address.h"
#include "proto/wire/channel.h"
#include "proto/wire/session_codec.h"
#include "weft/v1/session.grpc.pb.h"

namespace weft {
namespace {

// Ends the process unless `ok`.
void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "session_bench: bare gRPC: %s\n", what);
  std::exit(1);
}

// Waits for the queue's next event and returns whether its operation succeeded.
bool NextOf(grpc::CompletionQueue* queue, bool spin) {
  void* tag = nullptr;
  bool ok = false;
  if (!spin) {
    Check(queue->Next(&tag, &ok), "its queue was shut down");
    return ok;
  }
  for (;;) {
    const auto status = queue->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (status == grpc::CompletionQueue::GOT_EVENT) return ok;
    Check(status == grpc::CompletionQueue::TIMEOUT, "its queue was shut down");
  }
}

v1::CoordinatorMessage GrantOfOne() {
  v1::CoordinatorMessage message;
  const Grant grant{1, 0, {1, 1}, {Job{}}};
  wire::Encode(FromCoordinator(grant), message.add_payloads());
  return message;
}

v1::WorkerMessage CompletionOfOne() {
  v1::WorkerMessage message;
  const Completions done{1, 0, {1, 1}, {{Job{}, 1'000'000, 2'000'000, 0, false}}};
  wire::Encode(FromWorker(done), message.add_payloads());
  return message;
}

}  // namespace

void ServeBareSession(const std::string& listen, const std::function<void(const std::string&)>& listening) {
  v1::Coordination::AsyncService service;
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  Check(server != nullptr, "cannot listen");
  grpc::ServerContext context;
  grpc::ServerAsyncReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage> stream(&context);
  service.RequestSession(&context, &stream, queue.get(), queue.get(), nullptr);
  listening(listen.rfind("unix:", 0) == 0 ? listen
                                          : listen.substr(0, listen.rfind(':') + 1) + std::to_string(port));
  Check(NextOf(queue.get(), false), "no stream came");
  const v1::CoordinatorMessage answer = GrantOfOne();
  v1::WorkerMessage in;
  // Tags: 1 of the read, 2 of the write, which has always ended when the next message is there.
  stream.Read(&in, reinterpret_cast<void*>(1));
  for (;;) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue->Next(&tag, &ok) || !ok) std::_Exit(0);
    if (tag != reinterpret_cast<void*>(1)) continue;
    stream.Write(answer, reinterpret_cast<void*>(2));
    stream.Read(&in, reinterpret_cast<void*>(1));
  }
}

std::vector<double> BareRoundTrips(const std::string& address, int trips, bool spin) {
  const std::vector<Address> addresses = *ParseAddresses(address);
  const std::shared_ptr<grpc::Channel> channel = *OpenChannel(addresses, {}, nullptr);
  const std::unique_ptr<v1::Coordination::Stub> stub = v1::Coordination::NewStub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream = stub->PrepareAsyncSession(&context, &queue);
  stream->StartCall(nullptr);
  Check(NextOf(&queue, false), "the stream did not start");
  const v1::WorkerMessage message = CompletionOfOne();
  v1::CoordinatorMessage in;
  std::vector<double> times;
  times.reserve(trips);
  for (int i = 0; i < trips; ++i) {
    const int64_t sent = MonotonicNow();
    stream->Write(message, reinterpret_cast<void*>(2));
    stream->Read(&in, reinterpret_cast<void*>(1));
    // The write has ended when its answer is there, at the latest.
    for (int events = 0; events < 2; ++events) Check(NextOf(&queue, spin), "the stream broke");
    times.push_back(static_cast<double>(MonotonicNow() - sent) / 1000);
  }
  context.TryCancel();
  queue.Shutdown();
  void* tag;
  bool ok;
  while (queue.Next(&tag, &ok)) {
  }
  return times;
}

}  // namespace weft
