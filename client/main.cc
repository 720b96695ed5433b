// The `weft` command.
#include <stdlib.h>

#include <iostream>
#include <variant>

#include "base/open_files.h"
#include "base/threads.h"
#include "client/commands/command_line.h"

namespace {

struct Run {
  weft::ExitCode operator()(const weft::SimulateOptions& options) const { return weft::RunSimulate(options); }
  weft::ExitCode operator()(const weft::CompareOptions& options) const { return weft::RunCompare(options); }
  weft::ExitCode operator()(const weft::PlanOptions& options) const { return weft::RunPlanCommand(options); }
  weft::ExitCode operator()(const weft::ProfileOptions& options) const { return weft::RunProfile(options); }
  weft::ExitCode operator()(const weft::TrainOptions& options) const { return weft::RunTrain(options); }
  weft::ExitCode operator()(const weft::EvalOptions& options) const { return weft::RunEval(options); }
  weft::ExitCode operator()(const weft::GenerateOptions& options) const { return weft::RunGenerate(options); }
  weft::ExitCode operator()(const weft::CheckpointOptions& options) const {
    return weft::RunCheckpoint(options);
  }
  weft::ExitCode operator()(const weft::ExportWeightsOptions& options) const {
    return weft::RunExportWeights(options);
  }
  weft::ExitCode operator()(const weft::SubmitOptions& options) const { return weft::RunSubmit(options); }
  weft::ExitCode operator()(const weft::ListOptions& options) const { return weft::RunList(options); }
  weft::ExitCode operator()(const weft::WorkersOptions& options) const { return weft::RunWorkers(options); }
  weft::ExitCode operator()(const weft::SlurmOptions& options) const { return weft::RunSlurm(options); }
  weft::ExitCode operator()(const weft::DoctorOptions& options) const { return weft::RunDoctor(options); }
  weft::ExitCode operator()(const weft::TopOptions& options) const { return weft::RunTop(options); }
  weft::ExitCode operator()(const weft::DescribeOptions& options) const { return weft::RunDescribe(options); }
  weft::ExitCode operator()(const weft::WaitOptions& options) const { return weft::RunWait(options); }
  weft::ExitCode operator()(const weft::CancelOptions& options) const { return weft::RunCancel(options); }
  weft::ExitCode operator()(const weft::MoveOptions& options) const { return weft::RunMove(options); }
  weft::ExitCode operator()(const weft::DrainOptions& options) const { return weft::RunDrain(options); }
  weft::ExitCode operator()(const weft::ExplainOptions& options) const { return weft::RunExplain(options); }
  weft::ExitCode operator()(const weft::TraceOptions& options) const {
    return weft::RunTraceCommand(options);
  }
  weft::ExitCode operator()(const weft::LogsOptions& options) const { return weft::RunLogs(options); }
  weft::ExitCode operator()(const weft::ConfigOptions& options) const { return weft::RunConfig(options); }
  weft::ExitCode operator()(const weft::CertsOptions& options) const { return weft::RunCerts(options); }
  weft::ExitCode operator()(const weft::DiffOptions& options) const { return weft::RunDiffCommand(options); }
};

// Lets the worker processes of this command start without UCX's hooks into mmap, which serve network adapters
// that read memory by themselves. Installing them takes each process about a quarter of a second. An
// environment that chooses transports of its own keeps the hooks.
void LeaveOutMemoryHooks() {
  for (const char* choice : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (getenv(choice) != nullptr) return;
  }
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", /*overwrite=*/0);
}

}  // namespace

int main(int argc, char** argv) {
  LeaveOutMemoryHooks();
  weft::RaiseOpenFileLimit();  // of a coordinator with many worker processes
  const weft::CommandLine line = weft::ParseCommandLine(argc, argv);
  if (!line.command.has_value()) return line.exit_code;
  // gRPC hangs or ends the process without threads. A simulation has neither.
  constexpr int kThreads = 12;
  const bool alone = std::holds_alternative<weft::SimulateOptions>(*line.command);
  if (absl::Status threads = alone ? absl::OkStatus() : weft::CheckThreads(kThreads); !threads.ok()) {
    std::cerr << "weft: " << threads.message() << "\n";
    return weft::kExitTryAgain;
  }
  return std::visit(Run(), *line.command);
}
