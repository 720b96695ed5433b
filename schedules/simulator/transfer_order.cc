#include "schedules/simulator/transfer_order.h"

#include <array>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

std::string TextOf(const TransferAction& a) {
  return absl::StrCat(a.stage, a.sends ? "SEND_" : "RECV_", a.of_forward ? "F" : "B", a.microbatch);
}

// Names a tensor that is sent: of a forward or a backward, the stage that sends it, the micro-batch.
using Parcel = std::tuple<bool, int, int>;

Parcel ParcelOf(const TransferAction& a) {
  const int before = a.of_forward ? a.stage - 1 : a.stage + 1;
  return {a.of_forward, a.sends ? a.stage : before, a.microbatch};
}

// The rows while they are carried out.
class Exchange {
 public:
  explicit Exchange(const std::vector<std::vector<TransferAction>>& rows) : rows_(rows), next_(rows.size()) {
    for (size_t row = 0; row < rows.size(); ++row) {
      for (const TransferAction& action : rows[row]) ends_[ParcelOf(action)][action.sends].push_back(row);
    }
  }

  // Carries out what can be. Returns false when nothing is left.
  bool RunUntilStuck() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t row = 0; row < rows_.size(); ++row) {
        SkipLone(row);
        if (IsOver(row)) continue;
        const size_t peer = PeerOf(row);
        SkipLone(peer);
        if (IsOver(peer) || !Meet(At(row), At(peer))) continue;
        ++next_[row];
        ++next_[peer];
        moves = true;
      }
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (!IsOver(row)) return true;
    }
    return false;
  }

  // Returns the rows of a circle. Requires that it is stuck.
  std::vector<size_t> Circle() const {
    size_t row = 0;
    while (IsOver(row)) ++row;
    std::vector<size_t> path;
    std::vector<char> seen(rows_.size());
    for (; !seen[row]; row = PeerOf(row)) {
      seen[row] = 1;
      path.push_back(row);
    }
    while (path.front() != row) path.erase(path.begin());
    return path;
  }

  const TransferAction& At(size_t row) const { return rows_[row][next_[row]]; }

 private:
  static bool Meet(const TransferAction& a, const TransferAction& b) {
    return a.sends != b.sends && ParcelOf(a) == ParcelOf(b);
  }
  bool IsOver(size_t row) const { return next_[row] == rows_[row].size(); }
  // Returns the row with the other end of the row's next action.
  size_t PeerOf(size_t row) const { return ends_.at(ParcelOf(At(row)))[!At(row).sends].front(); }
  // An action has another end if each end is in one row, and only once.
  void SkipLone(size_t row) {
    for (; !IsOver(row); ++next_[row]) {
      const auto& [receives, sends] = ends_.at(ParcelOf(At(row)));
      if (sends.size() == 1 && receives.size() == 1 && sends != receives) return;
    }
  }

  const std::vector<std::vector<TransferAction>>& rows_;
  std::vector<size_t> next_;                                   // by row, the action that it waits with
  std::map<Parcel, std::array<std::vector<size_t>, 2>> ends_;  // rows with its receives, and with its sends
};

TransferAction OtherEnd(TransferAction a) {
  a.stage += a.sends == a.of_forward ? 1 : -1;
  a.sends = !a.sends;
  return a;
}

}  // namespace

absl::Status CheckTransferOrder(const std::vector<std::vector<TransferAction>>& rows) {
  Exchange exchange(rows);
  if (!exchange.RunUntilStuck()) return absl::OkStatus();
  const std::vector<size_t> circle = exchange.Circle();
  std::vector<std::string> parts;
  for (size_t i = 0; i < circle.size(); ++i) {
    const TransferAction& own = exchange.At(circle[i]);
    const TransferAction& first = exchange.At(circle[(i + 1) % circle.size()]);
    parts.push_back(absl::StrCat(TextOf(own), " (row ", circle[i] + 1, ", cell ", own.cell, ") needs ",
                                 TextOf(OtherEnd(own)), ", which comes behind ", TextOf(first)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "sends and receives wait for each other in a circle: ", absl::StrJoin(parts, "; "),
      ". Put them into another order, or leave them out: Weft sends what has to be sent by itself"));
}

}  // namespace weft
