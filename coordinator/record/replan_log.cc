#include "coordinator/record/replan_log.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {

std::string ReplanLine(const Replanned& replanned) {
  const nlohmann::ordered_json line = {{"step", replanned.step},
                                       {"schedule", replanned.plan->schedule},
                                       {"former", replanned.former},
                                       {"reason", replanned.reason}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status AppendReplans(const std::string& folder, const std::vector<Replanned>& replanned) {
  if (replanned.empty()) return absl::OkStatus();
  const std::string path = folder + "/replans.jsonl";
  std::ofstream file(path, std::ios::binary | std::ios::app);
  for (const Replanned& one : replanned) file << ReplanLine(one) + "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace weft
