// A store whose commits wait to be let go, for tests of what must wait for them. Any thread.
#ifndef WEFT_TESTS_CONFORMANCE_HELD_STORE_H_
#define WEFT_TESTS_CONFORMANCE_HELD_STORE_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "coordinator/store/store.h"

namespace weft {

class HeldStore final : public Store {
 public:
  absl::StatusOr<StoredState> Load() override { return StoredState(); }
  absl::Status Commit(const std::vector<Records>& batch) override {
    MutexLock lock(mu_);
    sizes_.push_back(batch.size());
    ++commits_;
    changed_.SignalAll();
    while (let_go_ < commits_) changed_.Wait(mu_);
    return answer_;
  }
  absl::Status Room() override {
    MutexLock lock(mu_);
    return absl::IsResourceExhausted(answer_) ? answer_ : absl::OkStatus();
  }
  void AwaitCommits(int commits) {
    MutexLock lock(mu_);
    while (commits_ < commits) changed_.Wait(mu_);
  }
  void LetGo(int commits, absl::Status answer = absl::OkStatus()) {
    MutexLock lock(mu_);
    let_go_ = commits;
    answer_ = std::move(answer);
    changed_.SignalAll();
  }
  std::vector<size_t> sizes() {
    MutexLock lock(mu_);
    return sizes_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<size_t> sizes_;
  int commits_ = 0, let_go_ = 0;
  absl::Status answer_;
};

}  // namespace weft

#endif  // WEFT_TESTS_CONFORMANCE_HELD_STORE_H_
