// The `weft` command.
#include <variant>

#include "client/command_line.h"

namespace {

struct Run {
  weft::ExitCode operator()(const weft::SimulateOptions& options) const { return weft::RunSimulate(options); }
  weft::ExitCode operator()(const weft::TrainOptions& options) const { return weft::RunTrain(options); }
};

}  // namespace

int main(int argc, char** argv) {
  const weft::CommandLine line = weft::ParseCommandLine(argc, argv);
  return line.command.has_value() ? std::visit(Run(), *line.command) : line.exit_code;
}
