#include "coordinator/record/replan_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/durable_file.h"
#include "base/run_files.h"
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
  std::string lines;
  for (const Replanned& one : replanned) absl::StrAppend(&lines, ReplanLine(one), "\n");
  const int file = OpenRunFile(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  const bool written = file >= 0 && WriteAll(file, lines.data(), lines.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", RunFileError(error)));
}

}  // namespace weft
