// Adapts CLI11: turns the arguments of `weft` into the options of one of its commands.
//
// Each command has its options and its Run in a file of this folder, as train_command.h; main.cc calls the
// Run. The parser itself answers help, version and mistakes: unknown commands and flags with the nearest
// valid one and exit code 2.
#ifndef WEFT_CLIENT_COMMANDS_COMMAND_LINE_H_
#define WEFT_CLIENT_COMMANDS_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings/settings.h"
#include "client/commands/certs_command.h"
#include "client/commands/checkpoint_command.h"
#include "client/commands/compare_command.h"
#include "client/commands/config_command.h"
#include "client/commands/diff_command.h"
#include "client/commands/doctor_command.h"
#include "client/commands/eval_command.h"
#include "client/commands/explain_command.h"
#include "client/commands/export_weights_command.h"
#include "client/commands/generate_command.h"
#include "client/commands/logs_command.h"
#include "client/commands/move_commands.h"
#include "client/commands/plan_command.h"
#include "client/commands/profile_command.h"
#include "client/commands/runs_commands.h"
#include "client/commands/simulate_command.h"
#include "client/commands/slurm_command.h"
#include "client/commands/top_command.h"
#include "client/commands/trace_command.h"
#include "client/commands/train_command.h"
#include "client/console/console.h"

namespace weft {

using Command =
    std::variant<SimulateOptions, CompareOptions, PlanOptions, ProfileOptions, TrainOptions, EvalOptions,
                 GenerateOptions, CheckpointOptions, ExportWeightsOptions, SubmitOptions, ListOptions,
                 WorkersOptions, DescribeOptions, WaitOptions, CancelOptions, MoveOptions, DrainOptions,
                 DiffOptions, ExplainOptions, CertsOptions, TopOptions, DoctorOptions, SlurmOptions,
                 TraceOptions, LogsOptions, ConfigOptions>;

struct CommandLine {
  std::optional<Command> command;  // absent when the parser has answered: leave with exit_code
  ExitCode exit_code = kExitOk;
};

CommandLine ParseCommandLine(int argc, const char* const* argv);

// Returns what is wrong with a configuration file of this program, as "FILE:LINE: ..".
std::optional<std::string> CheckClientConfig(const std::string& file);

// Returns the settings that every command takes which talks to a coordinator. `file` is the configuration
// file, "" for none. InvalidArgument, with the line, if it is wrong.
absl::StatusOr<std::vector<Setting>> ClientSettings(const std::string& file);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COMMAND_LINE_H_
