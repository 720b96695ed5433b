// Writes records to a store on a thread of its own, so that no message waits for the disk that need not.
//
// Group commit without a timer: while one commit is under way, the records that come gather, and the next
// commit takes them all. So a record waits for at most one commit of others.
//
// A store without room: the batch is tried again until there is some, and `full` says so meanwhile; nothing
// that was handed over is lost. Any other failure ends the store: `failed` is called once, and nothing is
// reported as durable any more.
//
// Invariants: `durable` of each Write is called once, in the order of the calls, when its records and all
// before them are on the disk; never after Stop has returned. Threads: Write, full from any; the callbacks on
// the writer's thread.
#ifndef WEFT_COORDINATOR_STORE_STORE_WRITER_H_
#define WEFT_COORDINATOR_STORE_STORE_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "coordinator/store/store.h"

namespace weft {

class Metrics;

struct StoreWriterOptions {
  std::function<void(const absl::Status&)> failed;
  // Gets a sentence when the store is full, and when it has room again; may be empty.
  std::function<void(const std::string&)> log;
  Metrics* metrics = nullptr;  // outlives the writer
};

class StoreWriter {
 public:
  StoreWriter(std::unique_ptr<Store> store, StoreWriterOptions options);
  // Stops it.
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  // `durable` may be empty.
  void Write(Records records, std::function<void()> durable);
  // Returns OK if there is room for new runs; ResourceExhausted says what is short.
  absl::Status Room() const;
  // Writes what was handed over, or gives it up if the store is full, and ends the thread.
  void Stop();

 private:
  struct Series;
  struct Waiting {
    std::vector<Records> records;
    std::vector<std::function<void()>> durable;
  };
  void Run();
  // Waits for records, and then and now for room. Returns false once there are none and it is to stop.
  bool Take(Waiting* taken);
  absl::Status Commit(const std::vector<Records>& batch);
  void CheckRoom();

  const std::unique_ptr<Store> store_;
  const StoreWriterOptions options_;
  const std::unique_ptr<Series> series_;
  mutable Mutex mu_;
  CondVar wake_;
  Waiting waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // the store has failed, or was given up
  absl::Status room_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_STORE_STORE_WRITER_H_
