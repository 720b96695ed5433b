#include "worker/shell/loop/state_holders.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

[[noreturn]] void Die(Rank rank, const Job& job, const std::string& what) {
  std::fprintf(stderr, "weft: broken invariant: %s, on rank %d, %s\n", Describe(job).c_str(), rank,
               what.c_str());
  std::abort();
}

}  // namespace

void StateHolders::Come(Rank rank, const Job& job) {
  const auto [holder, alone] = holder_.emplace(job.stage, rank);
  if (!alone)
    Die(rank, job, absl::StrCat("gets the state of its stage, which rank ", holder->second, " has"));
}

void StateHolders::Stay(Rank rank, const Job& job) const {
  const auto found = holder_.find(job.stage);
  if (found == holder_.end() || found->second != rank)
    Die(rank, job, "is to find the state of its stage there, which does not have it");
}

void StateHolders::Leave(Rank rank, const Job& job) {
  const auto found = holder_.find(job.stage);
  if (found == holder_.end() || found->second != rank)
    Die(rank, job, "gives away the state of its stage, which it does not have");
  holder_.erase(found);
}

}  // namespace weft
