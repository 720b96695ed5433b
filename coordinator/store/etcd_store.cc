#include "coordinator/store/etcd_store.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fnv1a.h"
#include "base/monotonic_clock.h"
#include "coordinator/store/row_changes.h"

namespace weft {
namespace {

constexpr absl::string_view kScheme = "etcd://";
constexpr int64_t kPatienceNs = 30'000'000'000;
constexpr std::chrono::milliseconds kPause{100};
constexpr size_t kChecksumBytes = 8;

std::string WithChecksum(uint64_t checksum, absl::string_view body) {
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&checksum), kChecksumBytes), body);
}

uint64_t ChecksumIn(absl::string_view value) {
  uint64_t checksum = 0;
  std::memcpy(&checksum, value.data(), kChecksumBytes);
  return checksum;
}

uint64_t ChecksumOfHead(absl::string_view body) { return Fnv1a().Add(body).hash(); }

class EtcdStore final : public Store {
 public:
  EtcdStore(std::shared_ptr<EtcdClient> client, std::shared_ptr<const EtcdLeadership> leadership,
            const std::string& prefix, int64_t unix_minus_monotonic_ns)
      : client_(std::move(client)),
        leadership_(std::move(leadership)),
        head_key_(absl::StrCat(prefix, "/head")),
        runs_key_(absl::StrCat(prefix, "/run/")),
        shift_(unix_minus_monotonic_ns) {}

  absl::StatusOr<StoredState> Load() override {
    StoredState state;
    const absl::StatusOr<EtcdKey> head = client_->Read(head_key_);
    if (!head.ok()) return head.status();
    absl::Status taken = head->create_revision == 0 ? absl::OkStatus() : TakeHead(head->value, &state);
    if (absl::IsFailedPrecondition(taken)) return taken;
    const absl::StatusOr<std::vector<EtcdKey>> rows = client_->ReadAll(runs_key_);
    if (!rows.ok()) return rows.status();
    for (size_t i = 0; taken.ok() && i < rows->size(); ++i) taken = TakeRow((*rows)[i], &state);
    if (taken.ok()) taken = CheckStored(state);
    if (!taken.ok())
      return absl::DataLossError(absl::StrCat(
          taken.message(), ". Restore etcd from a snapshot, or remove the keys below ", runs_key_,
          ": the output folders of the runs have their checkpoints, and weft submit --resume goes on from "
          "them"));
    epoch_ = state.epoch;
    last_run_ = state.last_run;
    runs_.clear();
    for (const auto& [id, run] : state.runs) runs_.insert(id);
    return state;
  }

  absl::Status Commit(const std::vector<Records>& batch) override {
    const RowChanges changes = ChangesOf(
        batch, shift_, [this](uint64_t run) { return runs_.count(run) > 0; }, kMaxEtcdBytes);
    epoch_ = std::max(epoch_, changes.epoch);
    last_run_ = std::max(last_run_, changes.last_run);
    std::vector<EtcdChange> part = {HeadChange()};
    size_t bytes = 0;
    for (auto row = changes.rows.begin(); row != changes.rows.end();) {
      const auto end = EndOfJoined(row, changes.rows.end());
      size_t more = 0;
      for (auto at = row; at != end; ++at) more += at->body.size();
      const size_t count = part.size() + static_cast<size_t>(end - row);
      if (part.size() > 1 && (count > kMaxEtcdChanges || bytes + more > kMaxEtcdBytes)) {
        if (absl::Status made = Make(part); !made.ok()) return made;
        part.resize(1);
        bytes = 0;
      }
      bytes += more;
      for (; row != end; ++row) part.push_back(ChangeOf(*row));
    }
    if (absl::Status made = Make(part); !made.ok()) return made;
    runs_.insert(changes.submitted.begin(), changes.submitted.end());
    for (const uint64_t run : changes.forgotten) runs_.erase(run);
    return absl::OkStatus();
  }

 private:
  // Keys sort as their numbers do.
  std::string KeyOfRun(uint64_t run) const { return absl::StrFormat("%s%020d/", runs_key_, run); }
  static char DigitOf(RowKind kind) { return static_cast<char>('0' + static_cast<int>(kind)); }
  std::string KeyOf(const StoredRow& row) const {
    return absl::StrFormat("%s%c/%010d", KeyOfRun(row.run), DigitOf(row.kind), row.step);
  }

  using Row = std::vector<RowChange>::const_iterator;
  // Returns the end of the rows that are stored together with the first.
  static Row EndOfJoined(Row first, Row end) {
    while (first != end && first->joined) ++first;
    return first == end ? end : first + 1;
  }

  EtcdChange HeadChange() const {
    const std::string body = absl::StrCat(epoch_, " ", last_run_);
    return {head_key_, WithChecksum(ChecksumOfHead(body), body), ""};
  }

  EtcdChange ChangeOf(const RowChange& change) const {
    const std::string run = KeyOfRun(change.row.run);
    switch (change.kind) {
      case RowChange::Kind::kPut:
        break;
      case RowChange::Kind::kRemoveProgress:
        return {absl::StrCat(run, "3"), "", absl::StrCat(run, "5")};
      case RowChange::Kind::kRemoveRun:
        return {run, "", absl::StrCat(run, ":")};  // behind the digits
    }
    return {KeyOf(change.row), WithChecksum(ChecksumOf(change.row, change.body), change.body), ""};
  }

  // Makes the changes, however often that takes; it is the same whether an attempt that was not answered was
  // made.
  absl::Status Make(const std::vector<EtcdChange>& changes) {
    const int64_t start = MonotonicNow();
    while (true) {
      const absl::StatusOr<int64_t> made = client_->ChangeIf(leadership_->token(), changes);
      if (made.ok() && *made == 0)
        return absl::AbortedError("another coordinator leads; this one must not go on");
      if (made.ok()) return absl::OkStatus();
      if (!absl::IsUnavailable(made.status()) || MonotonicNow() - start > kPatienceNs) return made.status();
      std::this_thread::sleep_for(kPause);
    }
  }

  static absl::Status Damaged(const std::string& key) {
    return absl::DataLossError(absl::StrCat("the key ", key, " of etcd is damaged"));
  }

  absl::Status TakeHead(absl::string_view value, StoredState* state) const {
    if (value.size() < kChecksumBytes) return Damaged(head_key_);
    const absl::string_view body = value.substr(kChecksumBytes);
    const std::vector<absl::string_view> numbers = absl::StrSplit(body, ' ');
    if (ChecksumIn(value) != ChecksumOfHead(body)) return Damaged(head_key_);
    // The head of a later format has its number as a third word.
    if (numbers.size() > 2) return UnknownFormat(head_key_, numbers[2]);
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &state->epoch) ||
        !absl::SimpleAtoi(numbers[1], &state->last_run)) {
      return Damaged(head_key_);
    }
    return absl::OkStatus();
  }

  absl::Status TakeRow(const EtcdKey& row, StoredState* state) const {
    const std::vector<absl::string_view> parts = absl::StrSplit(absl::StripPrefix(row.key, runs_key_), '/');
    StoredRow key;
    int kind = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &key.run) || !absl::SimpleAtoi(parts[1], &kind) ||
        kind < 1 || kind > kMaxRowKind || !absl::SimpleAtoi(parts[2], &key.step) ||
        row.value.size() < kChecksumBytes) {
      return Damaged(row.key);
    }
    key.kind = static_cast<RowKind>(kind);
    const absl::string_view body = absl::string_view(row.value).substr(kChecksumBytes);
    if (ChecksumIn(row.value) != ChecksumOf(key, body)) return Damaged(row.key);
    return AddRow(key, body, shift_, state);
  }

  const std::shared_ptr<EtcdClient> client_;
  const std::shared_ptr<const EtcdLeadership> leadership_;
  const std::string head_key_, runs_key_;
  const int64_t shift_;
  uint64_t epoch_ = 0, last_run_ = 0;
  std::set<uint64_t> runs_;  // that have rows
};

}  // namespace

bool IsEtcdPlace(absl::string_view text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view text) {
  EtcdPlace place;
  absl::string_view rest = text;
  absl::ConsumePrefix(&rest, kScheme);
  const size_t slash = rest.find('/');
  absl::StatusOr<std::vector<Address>> endpoints = ParseAddresses(rest.substr(0, slash));
  if (!endpoints.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(endpoints.status().message(),
                     "; the form of a store in etcd is etcd://HOST:PORT[,HOST:PORT..][/PREFIX]"));
  place.endpoints = *std::move(endpoints);
  if (slash != absl::string_view::npos) place.prefix = std::string(rest.substr(slash + 1));
  if (place.prefix.empty() || absl::EndsWith(place.prefix, "/"))
    return absl::InvalidArgumentError(absl::StrCat(text, ": the prefix is empty or ends with /"));
  return place;
}

std::unique_ptr<Store> MakeEtcdStore(std::shared_ptr<EtcdClient> client,
                                     std::shared_ptr<const EtcdLeadership> leadership,
                                     const std::string& prefix, int64_t unix_minus_monotonic_ns) {
  return std::make_unique<EtcdStore>(std::move(client), std::move(leadership), prefix,
                                     unix_minus_monotonic_ns);
}

}  // namespace weft
