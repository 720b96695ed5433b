#include "client/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/run/byte_size.h"
#include "proto/run/unknown_name.h"
#include "schedules/families.h"
#include "worker/shell/compute/device_library.h"

namespace weft {
namespace {

constexpr int kSizeMost = 1 << 24;

const char* const kExamples = R"(
Examples:
  weft simulate 1f1b --stages 4 --microbatches 8            what would it do, as a table
  weft simulate lpp,groups=2,ranks=4 --stages 8 --microbatches 16 -o svg > lpp.svg
  weft compare docs/runs/shakespeare.yaml --memory 2GB      which schedule would be fastest
  weft compare docs/runs/tiny.yaml --measure                each of them for real, a few steps
  weft train docs/runs/shakespeare.yaml                     train on this machine
  weft train docs/runs/shakespeare.yaml --reference         the same as one plain loop
  weft eval docs/runs/shakespeare.yaml                      loss and accuracy of what was trained
  weft train run.yaml --resume out/run/checkpoint           go on where it stopped (--until)
  weft submit run.yaml --coordinator 10.0.0.5:7070          train on a coordinator's workers

Exit codes: 0 ok, 1 the run failed, 2 usage, 69 coordinator unreachable, 75 try again, 77 denied,
78 bad configuration, 124 time-out, 130 interrupted. Data goes to standard output, messages to standard error.)";

std::string SimulateFooter() {
  std::string text = "\nSchedules:\n";
  for (const Family& family : Families()) {
    absl::StrAppend(&text, "  ", family.name,
                    std::string(family.name.size() < 14 ? 14 - family.name.size() : 1, ' '), family.help,
                    "\n");
    for (const FamilyParameter& p : family.parameters) {
      absl::StrAppend(&text, "                  ", p.name, ": ", p.help, "\n");
    }
  }
  return absl::StrCat(
      text,
      "  rule=cdp_v1 or rule=cdp_v2 beside ddp, fsdp, gpipe, 1f1b, lpp or cdp_mp (there cdp_v2 if it is not "
      "given): the cyclic order (docs/schedules/cyclic.md)\n"
      "  custom        your own formulas, as in custom,workers=4,compute=s%W (docs/schedules/custom.md)\n"
      "\nA list gives one value a stage, as in --backward 2,2,2,3; one value is for all stages. Times\n"
      "are in any one unit. BYTES may end in KB, MB, GB, KiB, MiB, GiB.");
}

// A flag that takes numbers; what is wrong with them is said in full sentences.
void AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& target, bool bytes,
                const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&target, name, bytes](const std::string& text) {
           auto numbers = ParseNumbers(text, bytes);
           if (!numbers.ok()) throw CLI::ValidationError(name, std::string(numbers.status().message()));
           target = *std::move(numbers);
         },
         help)
      ->type_name(bytes ? "BYTES[,..]" : "X[,..]");
}

void AddNumber(CLI::App& app, const std::string& name, double& target, bool bytes, const std::string& type,
               const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&target, name, bytes](const std::string& text) {
           const auto numbers = ParseNumbers(text, bytes);
           if (!numbers.ok()) throw CLI::ValidationError(name, std::string(numbers.status().message()));
           if (numbers->size() != 1) throw CLI::ValidationError(name, "takes one number, not a list");
           target = numbers->front();
         },
         help)
      ->type_name(type);
}

// Of the commands that start worker processes. Those that they are for, to say what else they need.
std::vector<CLI::Option*> AddDevice(CLI::App& app, DeviceFlags& o) {
  CLI::Option* device =
      app.add_option(
             "--device", o.device,
             "Device that the worker processes compute on: cpu (default), cuda, cuda:1, or auto: a GPU "
             "if there is one that works (docs/guide/gpu.md)")
          ->check([](const std::string& text) {
            const auto choice = ParseDeviceChoice(text);
            return choice.ok() ? std::string() : std::string(choice.status().message());
          })
          ->type_name("DEVICE");
  CLI::Option* graphs = app.add_flag(
      "!--no-graphs", o.graphs, "Give a GPU each kernel by itself instead of whole passes as CUDA graphs");
  CLI::Option* nvtx = app.add_flag("--nvtx", o.nvtx, "Mark each job for a GPU's profiler (Nsight Systems)");
  return {device, graphs, nvtx};
}

CLI::App* AddSimulate(CLI::App& app, SimulateOptions& o) {
  CLI::App* sub = app.add_subcommand("simulate", "Predict what a schedule does, on a virtual clock");
  const auto duration = [&o](JobKind kind) -> std::vector<double>& {
    return o.simulation.duration[static_cast<int>(kind)];
  };
  sub->add_option_function<std::vector<std::string>>(
         "SCHEDULE",
         [&o](const std::vector<std::string>& schedules) {
           o.schedule = schedules.front();
           o.beside.assign(schedules.begin() + 1, schedules.end());
         },
         "name[,key=value..], as in lpp,groups=2,ranks=4, or a file: actions (.csv), formulas or a run "
         "file (.yaml), or the trace of a run (.json): what it really did. For -o memory, several")
      ->required()
      ->type_name("");
  sub->add_option("--stages", o.stages, "Stages of the model; a file may say it itself")
      ->check(CLI::Range(1, kSizeMost))
      ->type_name("S");
  sub->add_option("--microbatches", o.microbatches, "Micro-batches of a step; likewise")
      ->check(CLI::Range(1, kSizeMost))
      ->type_name("B");
  sub->add_option("--inputs", o.inputs,
                  "Where stages are no chain, those that each reads, joined by +, or `data`: data,0,0,1+2")
      ->delimiter(',')
      ->type_name("I,..");
  sub->add_option("--steps", o.simulation.steps, "Training steps (default 1)")
      ->check(CLI::Range(1, kSizeMost))
      ->type_name("T");
  sub->add_option("--from-step", o.from_step, "Of a trace: the step whose order is taken (default its last)")
      ->check(CLI::Range(0, 1'000'000'000))
      ->type_name("T");
  sub->add_flag("--clip-norm", o.clips,
                "Gradients are clipped by their global norm, so that each update waits for all stages; a run "
                "file says it by `train.clip_norm`");
  AddNumbers(*sub, "--forward", duration(JobKind::kForward), false, "Time of a forward (default 1)");
  AddNumbers(*sub, "--backward", duration(JobKind::kBackward), false, "Time of a backward (default 1)");
  AddNumbers(*sub, "--backward-input", duration(JobKind::kBackwardInput), false,
             "Time of a backward's half for the input, where a schedule splits it (default 1)");
  AddNumbers(*sub, "--backward-weight", duration(JobKind::kBackwardWeight), false,
             "Time of its half for the weights (default 1)");
  AddNumber(*sub, "--overlapped", o.simulation.overlapped, false, "X",
            "Time of a forward and a backward as one overlapped pair (default: the longer of the two)");
  AddNumbers(*sub, "--reduce", duration(JobKind::kReduce), false,
             "Time of a gradient sum over replicas (default 0)");
  AddNumbers(*sub, "--update", duration(JobKind::kUpdate), false, "Time of an optimizer step (default 0)");
  AddNumbers(*sub, "--activation", o.simulation.activation, true,
             "Memory of one micro-batch's activations on a stage");
  AddNumbers(*sub, "--weight", o.simulation.weight, true, "Memory of a stage's weights");
  AddNumbers(*sub, "--state", o.simulation.state, true,
             "Memory of a stage's gradients and optimizer, on whoever holds the weights");
  AddNumber(*sub, "--memory", o.simulation.memory, true, "BYTES",
            "Of a rank; a forward waits until its activations fit, and what can never fit is an error");
  sub->add_option("--profile", o.profile,
                  "Times and bytes from this file (docs/guide/profile.md); they replace those given here")
      ->type_name("FILE");
  AddNumber(*sub, "--bandwidth", o.simulation.bandwidth, true, "BYTES/S",
            "Of each link from rank to rank (default infinite)");
  AddNumber(*sub, "--latency", o.simulation.latency, false, "S", "Of each transfer (default 0)");
  sub->add_flag("--jobs", o.jobs, "List every job in the JSON");
  sub->add_flag("--communication", o.communication,
                "Count the messages that must follow one another between two ticks (table and JSON)");
  sub->add_option(
         "-o,--output", o.output,
         "table (default), json, svg, trace (Chrome, Perfetto), csv (actions of each rank), or memory: "
         "a picture (SVG) of the activations alive over all ranks against time, of a trace as measured")
      ->check(CLI::IsMember({"table", "json", "svg", "trace", "csv", "memory"}))
      ->type_name("FORM");
  sub->footer(SimulateFooter());
  return sub;
}

CLI::App* AddCompare(CLI::App& app, CompareOptions& o) {
  CLI::App* sub = app.add_subcommand("compare", "Predict every family of schedules on a run file's model");
  sub->add_option("FILE", o.file, "The run file; its data need not be there")->required()->type_name("");
  AddNumber(*sub, "--memory", o.memory, true, "BYTES",
            "Of a rank (default: the run file's `memory`, else no limit)");
  sub->add_option("--profile", o.profile,
                  "Measured times and bytes (docs/guide/profile.md); default: counted FLOPs")
      ->type_name("FILE");
  AddNumber(*sub, "--flops", o.flops, false, "N", "Counted FLOPs of a unit of time (default 1e9)");
  AddNumber(*sub, "--bandwidth", o.bandwidth, true, "BYTES",
            "Of each link, in a unit of time (default infinite)");
  AddNumber(*sub, "--latency", o.latency, false, "X", "Of each transfer (default 0)");
  sub->add_option("--workers", o.workers, "Only schedules of at most so many ranks")
      ->check(CLI::Range(1, kSizeMost))
      ->type_name("P");
  sub->add_option_function<std::string>(
         "-o,--output", [&o](const std::string& form) { o.json = form == "json"; }, "table (default) or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORM");
  CLI::Option* measure =
      sub->add_flag("--measure", o.measure,
                    "Train for real, a few steps under each schedule, and show what was measured beside what "
                    "the simulator says; the data must be there");
  sub->add_option("--schedules", o.schedules,
                  "Of --measure: those to train, as in ddp,rule=cdp_v2,1f1b; may be given several times "
                  "(default: the run file's, and every family and rule that the sizes allow)")
      ->needs(measure)
      ->type_name("S,..");
  sub->add_option("--steps", o.steps, "Of --measure: steps of each training (default 6)")
      ->needs(measure)
      ->check(CLI::Range(1, kSizeMost))
      ->type_name("T");
  sub->add_option("--processes", o.processes,
                  "Of --measure: most worker processes (default: one a rank, at most one a core)")
      ->needs(measure)
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option("--out", o.out,
                  "Of --measure: keep each training's results in a folder here (default: none)")
      ->needs(measure)
      ->type_name("DIR");
  for (CLI::Option* option : AddDevice(*sub, o.device)) option->needs(measure);
  for (const char* predicts : {"--memory", "--profile", "--flops", "--bandwidth", "--latency", "--workers"}) {
    measure->excludes(predicts);
  }
  sub->footer(
      "\nFastest first; what does not fit the memory or the sizes follows, with the reason. With --measure "
      "in "
      "the\norder given, one after another; what is refused or fails has its reason.");
  return sub;
}

CLI::App* AddProfile(CLI::App& app, ProfileOptions& o) {
  CLI::App* sub = app.add_subcommand("profile", "Measure what each layer of a run file's model costs");
  sub->add_option("FILE", o.file, "The run file")->required()->type_name("");
  sub->add_option("-o,--output", o.output, "The profile's file (default: standard output)")
      ->type_name("FILE");
  sub->add_option("--steps", o.steps, "Steps that are trained for it (default 6); the first is not counted")
      ->check(CLI::Range(2, kSizeMost))
      ->type_name("T");
  AddDevice(*sub, o.device);
  sub->footer(
      "\nEach layer's times and bytes for one micro-batch, for weft simulate --profile and weft compare "
      "--profile\n(docs/guide/profile.md). One process, so that nothing else runs beside a job.");
  return sub;
}

CLI::App* AddTrain(CLI::App& app, TrainOptions& o) {
  CLI::App* sub =
      app.add_subcommand("train", "Train on this machine: coordinator, workers and progress in one command");
  sub->add_option("FILE", o.file, "The run file (docs/guide/run_file.md)")->required()->type_name("");
  sub->add_option("--processes", o.processes, "Worker processes (default: one a rank, at most one a core)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option("--out", o.out, "Folder of the results (default out/NAME, NAME the run's name)")
      ->type_name("DIR");
  sub->add_option("--metrics", o.metrics,
                  "Serve metrics for Prometheus here, those of worker process i at the (i+1)th port after it")
      ->type_name("HOST:PORT");
  sub->add_flag("--reference", o.reference,
                "The same training as one plain loop, without the runtime: the yardstick");
  sub->add_option("--until", o.until,
                  "Stop when that many of the file's steps are made, and leave a checkpoint to go on from")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("STEP");
  sub->add_option("--resume", o.resume,
                  "Go on from this checkpoint of the same run file, as in out/NAME/checkpoint")
      ->type_name("DIR");
  AddDevice(*sub, o.device);
  sub->footer(
      "\nCtrl-C stops all processes. What is written is listed at the end and in docs/guide/outputs.md.");
  return sub;
}

CLI::App* AddEval(CLI::App& app, EvalOptions& o) {
  CLI::App* sub = app.add_subcommand("eval", "Loss and accuracy of a checkpoint on a data set");
  sub->add_option("FILE", o.file, "The run file: its model, and unless given here its data")
      ->required()
      ->type_name("");
  sub->add_option("--checkpoint", o.checkpoint,
                  "Folder of the checkpoint (default out/NAME/checkpoint, NAME the run's name)")
      ->type_name("DIR");
  sub->add_option("--data-images", o.images, "Images to evaluate on, in the format of MNIST, also .gz")
      ->type_name("FILE");
  sub->add_option("--data-labels", o.labels, "Their labels")->type_name("FILE");
  sub->add_option("--data-cifar10", o.cifar10, "A file of CIFAR-10's binary version, as test_batch.bin")
      ->type_name("FILE");
  sub->add_option("--data-text", o.text, "Text to evaluate a language model on")->type_name("FILE");
  sub->add_option_function<std::string>(
         "-o,--output", [&o](const std::string& form) { o.json = form == "json"; }, "table (default) or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORM");
  AddDevice(*sub, o.device);
  sub->footer("\nEach sample counts once; batch norms use their running averages, and nothing is dropped.");
  return sub;
}

// What every command that talks to a coordinator takes.
CLI::App* AddRunsCommand(CLI::App& app, const std::string& name, const std::string& help,
                         CoordinatorOptions& o) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->add_option(
         "--coordinator", o.address,
         absl::StrCat("unix:PATH or HOST:PORT (default $WEFT_COORDINATOR, else ", kDefaultCoordinator, ")"))
      ->envname("WEFT_COORDINATOR")
      ->type_name("ADDRESS");
  sub->add_option_function<std::string>(
         "-o,--output", [&o](const std::string& form) { o.json = form == "json"; }, "table (default) or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORM");
  return sub;
}

void AddRunNumber(CLI::App& sub, uint64_t& run) {
  sub.add_option("RUN", run, "The run's number, as weft ls shows it")->required()->type_name("");
}

CLI::App* AddSubmit(CLI::App& app, SubmitOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "submit", "Submit a training to a coordinator, and watch it", o.coordinator);
  sub->add_option("FILE", o.file, "The run file; its data paths must exist on the workers' machines too")
      ->required()
      ->type_name("");
  sub->add_option("--processes", o.processes, "Worker processes to run on (default: one a rank)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option("--out", o.out, "Folder for checkpoints on the workers' machines (default: none)")
      ->type_name("DIR");
  sub->add_flag("--detach", o.detach, "Print the run's number and leave");
  return sub;
}

CLI::App* AddList(CLI::App& app, ListOptions& o) {
  return AddRunsCommand(app, "ls", "List the runs of a coordinator", o.coordinator);
}

CLI::App* AddDescribe(CLI::App& app, DescribeOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "describe", "Show a run: state, reason, what each rank does", o.coordinator);
  AddRunNumber(*sub, o.run);
  return sub;
}

CLI::App* AddWait(CLI::App& app, WaitOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "wait", "Wait until a run has ended, in whatever way", o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->add_option("--timeout", o.timeout, "Longest time to wait (default: no limit); then exit code 124")
      ->check(CLI::Range(0.001, 1e9))
      ->type_name("S");
  return sub;
}

CLI::App* AddCancel(CLI::App& app, CancelOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "cancel", "Stop a run", o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->add_option("--reason", o.reason, "What others will read about it")->type_name("TEXT");
  return sub;
}

std::vector<std::string> NamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// What to say about arguments that CLI11 refused.
std::string Explain(CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  CLI::App* sub = nullptr;
  for (const std::string& argument : arguments) {
    if (sub == nullptr && !absl::StartsWith(argument, "-")) {
      for (CLI::App* one : app.get_subcommands({})) {
        if (one->get_name() == argument) sub = one;
      }
      if (sub == nullptr) return UnknownName("command", argument, NamesOf(app));
      continue;
    }
    const std::string flag = argument.substr(0, argument.find('='));
    const CLI::App& scope = sub != nullptr ? *sub : app;
    if (absl::StartsWith(flag, "--") && flag.size() > 2 && scope.get_option_no_throw(flag) == nullptr) {
      return UnknownName("flag", flag, FlagsOf(scope));
    }
  }
  if (sub == nullptr) return "no command given";
  return absl::StrCat(sub->get_name(), ": ", error.what());
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view text, bool bytes) {
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double number = 0;
    const std::optional<double> size = bytes ? ParseByteSize(part) : std::nullopt;
    const bool plain = !bytes && absl::SimpleAtod(part, &number) && std::isfinite(number) && number >= 0;
    if (!plain && !size.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part.substr(0, 64), "\" is not a number from 0 up",
                       bytes ? ", which may end in KB, MB, GB, KiB, MiB or GiB" : ""));
    }
    numbers.push_back(size.value_or(number));
  }
  return numbers;
}

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app{"Weft trains neural networks on many workers, with the parallel scheme as a value.", "weft"};
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  app.set_help_flag("-h,--help", "This help; each command has its own: weft simulate --help");
  app.require_subcommand(1);
  app.footer(kExamples);
  SimulateOptions simulate;
  CompareOptions compare;
  ProfileOptions profile;
  TrainOptions train;
  EvalOptions eval;
  SubmitOptions submit;
  ListOptions list;
  DescribeOptions describe;
  WaitOptions wait;
  CancelOptions cancel;
  std::vector<std::pair<CLI::App*, std::function<Command()>>> commands;
  commands.emplace_back(AddTrain(app, train), [&] { return train; });
  commands.emplace_back(AddEval(app, eval), [&] { return eval; });
  commands.emplace_back(AddSimulate(app, simulate), [&] { return simulate; });
  commands.emplace_back(AddCompare(app, compare), [&] { return compare; });
  commands.emplace_back(AddProfile(app, profile), [&] { return profile; });
  commands.emplace_back(AddSubmit(app, submit), [&] { return submit; });
  commands.emplace_back(AddList(app, list), [&] { return list; });
  commands.emplace_back(AddDescribe(app, describe), [&] { return describe; });
  commands.emplace_back(AddWait(app, wait), [&] { return wait; });
  commands.emplace_back(AddCancel(app, cancel), [&] { return cancel; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // help and version
      app.exit(error);
      return {std::nullopt, kExitOk};
    }
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.empty()) std::fputs(app.help().c_str(), stderr);
    PrintMessage(Explain(app, arguments, error));
    const std::string first = arguments.empty() ? "" : arguments[0];
    const std::vector<std::string> names = NamesOf(app);
    const bool known = std::find(names.begin(), names.end(), first) != names.end();
    if (!first.empty()) PrintMessage(absl::StrCat("see weft ", known ? first + " " : "", "--help"));
    return {std::nullopt, kExitUsage};
  }
  for (const auto& [sub, make] : commands) {
    if (sub->parsed()) return {make(), kExitOk};
  }
  return {std::nullopt, kExitUsage};
}

}  // namespace weft
