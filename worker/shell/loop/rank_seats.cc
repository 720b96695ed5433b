#include "worker/shell/loop/rank_seats.h"

#include <algorithm>
#include <utility>

namespace weft {

void RankSeats::Place(const Assign& assign, bool pairs) {
  const size_t ranks = assign.leases.size();
  while (seats_.size() < (pairs ? 2 * ranks : ranks)) {
    seats_.push_back(std::make_unique<Seat>());
    seats_.back()->index = static_cast<int>(seats_.size()) - 1;
  }
  seat_of_rank_.assign(assign.process_of_rank.size(), nullptr);
  for (size_t i = 0; i < ranks; ++i) {
    Seat* seat = seats_[i].get();
    seat->rank = assign.leases[i].rank;
    seat_of_rank_[seat->rank] = seat;
    seat->second = pairs ? seats_[ranks + i].get() : nullptr;
    seat->saved_stages.clear();
    seat->bytes_sent.fill(0);
    seat->activation_bytes.clear();
    seat->job_bytes.clear();
    seat->bytes_received.fill(0);
  }
}

void RankSeats::Clear() {
  for (auto& seat : seats_) {
    seat->rank = -1;
    seat->second = nullptr;
  }
  seat_of_rank_.clear();
}

std::optional<int> RankSeats::Start(JobTask job) {
  Seat* seat = Of(job.start.rank);
  const bool overlapped = job.start.overlapped;
  if (overlapped && !seat->begun) {
    seat->held = std::move(job);
    return std::nullopt;
  }
  if (!overlapped) seat->begun = false;
  Seat* to = overlapped ? seat->second : seat;
  to->task = std::move(job);
  return to->index;
}

std::optional<int> RankSeats::NoteBegun(Rank rank) {
  Seat* seat = Of(rank);
  seat->begun = true;
  if (!seat->held.has_value()) return std::nullopt;
  seat->second->task = *std::exchange(seat->held, std::nullopt);
  return seat->second->index;
}

void RankSeats::NoteActivationBytes(Rank rank, int stage, int64_t bytes) {
  int64_t& most = Of(rank)->activation_bytes[stage];
  most = std::max(most, bytes);
}

void RankSeats::NoteJobBytes(Rank rank, const Job& job, const JobBytes& bytes) {
  JobBytes& most = Of(rank)->job_bytes.try_emplace({job.kind, job.stage}, bytes).first->second;
  most = MostOf(most, bytes);
}

std::vector<int> RankSeats::End() {
  std::vector<int> ending;
  for (auto& seat : seats_) {
    if (seat->compute == nullptr) continue;
    seat->ending = true;
    seat->task = EndTask{std::move(seat->compute)};
    ending.push_back(seat->index);
  }
  return ending;
}

std::optional<Rank> RankSeats::FindEnding() const {
  const auto seat = std::find_if(seats_.begin(), seats_.end(), [](const auto& s) { return s->ending; });
  return seat == seats_.end() ? std::nullopt : std::optional((*seat)->rank);
}

std::vector<std::unique_ptr<RankCompute>> RankSeats::Release() {
  std::vector<std::unique_ptr<RankCompute>> computes;
  for (auto& seat : seats_) computes.push_back(std::move(seat->compute));
  return computes;
}

}  // namespace weft
