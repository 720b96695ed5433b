#include "client/commands/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/net/address.h"
#include "base/path_text.h"
#include "base/release.h"
#include "base/settings/settings.h"
#include "client/commands/completion.h"
#include "run/byte_size.h"
#include "run/network_spec.h"
#include "run/unknown_name.h"
#include "schedules/families/families.h"
#include "worker/shell/compute/device_library.h"

namespace weft {
namespace {

constexpr int kMaxSize = 1 << 24;
constexpr int kMaxFlagRanks = 1 << 16;
constexpr int kMaxPlannedRanks = 128;

// Columns of a help's footer; flags are broken where the terminal ends.
constexpr size_t kFooterColumns = 100;

// The footer of a command's help: examples of its own, then notes. The effect of an example stands beside it,
// or below it where a line would be too long.
using Examples = std::vector<std::pair<std::string, std::string>>;  // command lines and their effects
std::string Footer(const Examples& examples, absl::string_view notes = "") {
  size_t width = 0, longest = 0;
  for (const auto& [line, what] : examples) {
    width = std::max(width, line.size());
    longest = std::max(longest, what.size());
  }
  const bool on_one_line = 2 + width + 3 + longest <= kFooterColumns;
  std::string text = examples.size() == 1 ? "\nExample:\n" : "\nExamples:\n";
  for (const auto& [line, what] : examples) {
    absl::StrAppend(&text, "  ", line, on_one_line ? std::string(width - line.size() + 3, ' ') : "\n      ",
                    what, "\n");
  }
  if (notes.empty()) {
    text.pop_back();
    return text;
  }
  return absl::StrCat(text, "\n", notes);
}

std::string ProgramFooter() {
  return Footer(
      {{"weft simulate 1f1b --stages 4 --microbatches 8", "what a schedule would do"},
       {"weft compare docs/runs/shakespeare.yaml --memory 2GB", "which schedule would be fastest"},
       {"weft train docs/runs/shakespeare.yaml", "train on this machine"},
       {"weft eval docs/runs/shakespeare.yaml", "loss and accuracy of what was trained"},
       {"weft generate out/shakespeare --prompt ROMEO:", "what the model writes"},
       {"weft submit run.yaml --coordinator 10.0.0.5:7070", "train on a coordinator's workers"}},
      "Each command has more in its own help, as in weft train --help.\n\n"
      "Exit codes: 0 ok, 1 the run failed, 2 usage, 69 coordinator unreachable, 75 try again, 77 denied,\n"
      "78 bad configuration, 124 time-out, 130 interrupted. Data goes to standard output, messages to\n"
      "standard error.");
}

std::string SimulateFooter() {
  std::string text = "Schedules:\n";
  for (const Family& family : Families()) {
    const std::string gap(family.name.size() < 14 ? 14 - family.name.size() : 1, ' ');
    absl::StrAppend(&text, WrapText(absl::StrCat("  ", family.name, gap, family.help), kFooterColumns, 16),
                    "\n");
    for (const FamilyParameter& p : family.parameters) {
      absl::StrAppend(&text,
                      WrapText(absl::StrCat(std::string(18, ' '), p.name, ": ", p.help), kFooterColumns, 20),
                      "\n");
    }
  }
  absl::StrAppend(
      &text,
      WrapText(
          absl::StrCat("  rule=cdp_v1 or rule=cdp_v2 beside one of ", absl::StrJoin(RuleTakers(), ", "),
                       " (for cdp_mp the default is cdp_v2): the cyclic order (docs/schedules/cyclic.md)"),
          kFooterColumns, 16),
      "\n",
      WrapText(
          "  order=forwards_first, 1f1b (backwards first, in_flight=S-s), depth_first or breadth_first, and "
          "in_flight=FORMULA over the stage s, the rank w and S, B, W, as in 1f1b,in_flight=2*(S-s)-1, "
          "beside "
          "the schedules that list them (docs/schedules/README.md)",
          kFooterColumns, 16),
      "\n"
      "  custom        your own formulas, as in custom,ranks=4,compute=s%W (docs/schedules/custom.md)\n"
      "\nA list gives one value per stage, as in --backward 2,2,2,3; one value is for all stages. Times\n"
      "are in any one unit. BYTES may end in KB, MB, GB, KiB, MiB, GiB.");
  return Footer(
      {{"weft simulate 1f1b --stages 4 --microbatches 8", "a table"},
       {"weft simulate 1f1b --stages 4 --microbatches 8 --backward 2 -o svg > 1f1b.svg", "a picture"},
       {"weft simulate lpp,groups=2,ranks=4 --stages 8 --microbatches 16 -o json", "for a program"},
       {"weft simulate out/tiny/trace.json -o memory > memory.svg", "memory of a training"}},
      text);
}

// The numbers that a flag takes.
struct NumberForm {
  bool bytes;       // true where each may end in KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB
  bool above_zero;  // true where 0 would mean no limit
  double most;      // largest number: results stay finite, and bytes within whole numbers of 64 bits
};
constexpr NumberForm kTimes = {false, false, 1e30}, kRates = {false, true, 1e30};
constexpr NumberForm kSizes = {true, false, 1e18}, kBudgets = {true, true, 1e18};
constexpr NumberForm kBandwidths = {true, true, 1e30};

// Parses "1,2.5,3": at least one number.
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view text, const NumberForm& form) {
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const auto wrong = [&](absl::string_view why, auto... more) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part.substr(0, 64), "\" is ", why, more...));
    };
    double number = 0;
    const std::optional<double> size = form.bytes ? ParseByteSize(part) : std::nullopt;
    const bool plain = !form.bytes && absl::SimpleAtod(part, &number) && std::isfinite(number) && number >= 0;
    if (!plain && !size.has_value()) {
      return wrong("not a number from 0 up",
                   form.bytes ? ", which may end in KB, MB, GB, KiB, MiB or GiB" : "");
    }
    numbers.push_back(size.value_or(number));
    if (form.above_zero && numbers.back() == 0) return absl::InvalidArgumentError("must be above 0");
    if (numbers.back() > 0 && numbers.back() < kLeastOfALink)
      return wrong("too small; the least number above 0 is ", kLeastOfALink);
    if (numbers.back() > form.most) return wrong("too large; the largest number is ", form.most);
  }
  return numbers;
}

// Adds a flag that takes numbers; wrong numbers are explained in full sentences.
void AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& target, const NumberForm& form,
                const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&target, name, form](const std::string& text) {
           auto numbers = ParseNumbers(text, form);
           if (!numbers.ok()) throw CLI::ValidationError(name, std::string(numbers.status().message()));
           target = *std::move(numbers);
         },
         help)
      ->type_name(form.bytes ? "BYTES[,..]" : "X[,..]");
}

void AddNumber(CLI::App& app, const std::string& name, double& target, const NumberForm& form,
               const std::string& type, const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&target, name, form](const std::string& text) {
           const auto numbers = ParseNumbers(text, form);
           if (!numbers.ok()) throw CLI::ValidationError(name, std::string(numbers.status().message()));
           if (numbers->size() != 1) throw CLI::ValidationError(name, "takes one number, not a list");
           target = numbers->front();
         },
         help)
      ->type_name(type);
}

// Adds the number by which counted FLOPs become time.
void AddFlops(CLI::App& app, double& flops) {
  AddNumber(app, "--flops", flops, kRates, "N",
            "Number of counted FLOPs that take one unit of time (default 1e9)");
  app.get_option("--flops")->excludes("--profile");
}

// Refuses paths that a run's records and messages cannot hold.
std::string ProblemOfPath(const std::string& path) { return std::string(CheckPathText(path).message()); }

// Adds the choice between JSON and what a person reads, which is the default.
void AddForm(CLI::App& sub, bool* json, const std::string& readable = "table") {
  sub.add_option_function<std::string>(
         "-o,--output", [json](const std::string& form) { *json = form == "json"; },
         readable + " (default) or json")
      ->check(CLI::IsMember({readable, std::string("json")}))
      ->type_name("FORM");
}

// Adds the flags of the commands that start worker processes. Returns them, so that the caller can say what
// else they need.
std::vector<CLI::Option*> AddDevice(CLI::App& app, DeviceFlags& o) {
  CLI::Option* device = app.add_option("--device", o.device,
                                       "Device that computes: cpu (default), cuda, cuda:1, or auto "
                                       "(a GPU that works, else the CPU; docs/guide/gpu.md)")
                            ->check([](const std::string& text) {
                              const auto choice = ParseDeviceChoice(text);
                              return choice.ok() ? std::string() : std::string(choice.status().message());
                            })
                            ->type_name("DEVICE");
  // A flag that sets false would show its value in the help.
  CLI::Option* graphs = app.add_flag_callback(
      "--no-graphs", [&o] { o.graphs = false; },
      "Give a GPU single kernels, not whole passes as CUDA graphs");
  CLI::Option* nvtx = app.add_flag("--nvtx", o.nvtx, "Mark each job for a GPU's profiler (Nsight Systems)");
  app.final_callback([&o] {
    if (o.device != "cpu" || (o.graphs && !o.nvtx)) return;
    throw CLI::ValidationError(o.nvtx ? "--nvtx" : "--no-graphs",
                               "has no effect on the CPU; give --device cuda or auto too");
  });
  return {device, graphs, nvtx};
}

// Adds the options that choose a schedule, and what it is simulated on.
void AddSimulatedSchedule(CLI::App* sub, SimulateOptions& o) {
  sub->add_option_function<std::vector<std::string>>(
         "SCHEDULE",
         [&o](const std::vector<std::string>& schedules) {
           o.schedule = schedules.front();
           o.compared.assign(schedules.begin() + 1, schedules.end());
         },
         "name[,key=value..], such as lpp,groups=2,ranks=4; or a file: actions (.csv), formulas (.yaml), a "
         "run file (.yaml; with the times and sizes of its model), or the trace of a run (.json). -o memory "
         "takes several")
      ->required()
      ->type_name("");
  sub->add_option("--stages", o.stages, "Number of stages (default: the file's, if it has one)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("S");
  sub->add_option("--microbatches", o.microbatches,
                  "Number of micro-batches of a step (default: the file's, if it has one)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("B");
  sub->add_option("--inputs", o.inputs,
                  "For stages that are no chain: what each stage reads, stages joined by +, or `data`; as in "
                  "data,0,0,1+2")
      ->delimiter(',')
      ->type_name("I,..");
  sub->add_option("--steps", o.simulation.steps, "Training steps (default 1; of a run file 4)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("T");
  sub->add_option("--schedule", o.under, "For a run file: simulate this schedule, not the file's own")
      ->type_name("SCHEDULE");
  sub->add_option("--from-step", o.from_step, "For a trace: take the order of this step (default: the last)")
      ->check(CLI::Range(0, 1'000'000'000))
      ->type_name("T");
  sub->add_flag("--clip-norm", o.takes_norm,
                "Clip gradients by their global norm, so that each update waits for all stages (a run file "
                "has `train.clip_norm`)");
}

// Adds the flag of a file that describes the network.
void AddNetwork(CLI::App& app, std::string* network) {
  app.add_option(
         "--network", *network,
         "What links share, nodes, and the speed of each rank, from this file (docs/guide/simulate.md)")
      ->type_name("FILE");
}

// Adds the bandwidth of copies to the host.
void AddHostBandwidth(CLI::App& app, double* bandwidth) {
  AddNumber(
      app, "--host-bandwidth", *bandwidth, kBandwidths, "BYTES",
      "Bytes per unit of time that `activations: offload` copies between a rank's memory and the host's "
      "(default: the profile's; else its copies take no time, and weft plan does not choose it)");
}

// Adds the options of durations, transfers and bytes.
void AddSimulatedCosts(CLI::App* sub, SimulateOptions& o) {
  const auto duration = [&o](JobKind kind) -> std::vector<double>& {
    return o.simulation.duration[static_cast<int>(kind)];
  };
  AddNumbers(*sub, "--forward", duration(JobKind::kForward), kTimes, "Time of a forward (default 1)");
  AddNumbers(*sub, "--backward", duration(JobKind::kBackward), kTimes,
             "Time of a whole backward (default 1)");
  AddNumbers(*sub, "--backward-input", duration(JobKind::kBackwardInput), kTimes,
             "Time of the half of a backward for the input, in schedules that split it (default: half of "
             "--backward)");
  AddNumbers(*sub, "--backward-weight", duration(JobKind::kBackwardWeight), kTimes,
             "Time of the half of a backward for the weights (default: half of --backward)");
  AddNumber(*sub, "--overlapped", o.simulation.overlapped, kTimes, "X",
            "Time of a forward and a backward as one overlapped pair (default: the longer of the two)");
  AddNumbers(*sub, "--reduce", duration(JobKind::kReduce), kTimes,
             "Time of a gradient sum over replicas (default 0)");
  AddNumbers(*sub, "--update", duration(JobKind::kUpdate), kTimes, "Time of an optimizer step (default 0)");
  AddNumbers(*sub, "--activation", o.simulation.activation, kSizes,
             "Bytes of the activations of one micro-batch on a stage");
  AddNumbers(*sub, "--weight", o.simulation.weight, kSizes, "Bytes of a stage's weights");
  AddNumbers(*sub, "--state", o.simulation.state, kSizes,
             "Bytes of a stage's gradients and optimizer state, on each rank that holds the weights");
  AddNumber(*sub, "--memory", o.simulation.memory, kBudgets, "BYTES",
            "Bytes that a rank may use: a forward waits until its activations fit. A schedule that can never "
            "fit is an error");
  sub->add_option("--profile", o.profile, "Times and bytes from this file (docs/guide/profile.md)")
      ->type_name("FILE");
  AddFlops(*sub, o.flops);
  AddNumber(*sub, "--bandwidth", o.simulation.bandwidth, kBandwidths, "BYTES",
            "Bandwidth of each link from rank to rank, in bytes per unit of time (default: infinite)");
  AddNumber(*sub, "--latency", o.simulation.latency, kTimes, "X", "Latency of each transfer (default 0)");
  AddNetwork(*sub, &o.network);
  AddHostBandwidth(*sub, &o.host_bandwidth);
}

CLI::App* AddSimulate(CLI::App& app, SimulateOptions& o) {
  CLI::App* sub = app.add_subcommand("simulate", "Predict what a schedule does, on a virtual clock");
  AddSimulatedSchedule(sub, o);
  AddSimulatedCosts(sub, o);
  sub->add_flag("--jobs", o.jobs, "List every job in the JSON");
  sub->add_flag("--communication", o.communication,
                "Count the messages that must follow one another between two ticks (table and JSON)");
  sub->add_option(
         "-o,--output", o.output,
         "table (default), json, svg, trace (Chrome, Perfetto), csv (actions of each rank), operations "
         "(of each rank, one by one), or "
         "memory (SVG: the activations alive over all ranks against time; for a trace, as measured)")
      ->check(CLI::IsMember({"table", "json", "svg", "trace", "csv", "memory", "operations"}))
      ->type_name("FORM");
  sub->footer(SimulateFooter());
  return sub;
}

// Adds the options by which a coordinator is reached.
void AddAccess(CLI::App& sub, CoordinatorOptions& o) {
  sub.add_option(
         "--coordinator", o.address,
         absl::StrCat("unix:PATH or HOST:PORT (default $WEFT_COORDINATOR, else ", kDefaultCoordinator, ")"))
      ->envname("WEFT_COORDINATOR")
      ->type_name("ADDRESS");
  AddSecurityFlags(sub, o.security);
  AddTokenFlag(sub, o.security);
}

// Adds --fleet and what it needs. `here`: options for this machine, which it excludes.
CLI::Option* AddFleet(CLI::App& sub, FleetOptions& o, const std::string& help,
                      const std::vector<CLI::Option*>& here) {
  CLI::Option* const fleet = sub.add_flag("--fleet", o.wanted, help);
  for (CLI::Option* option : here) fleet->excludes(option);
  sub.add_option("--pool", o.pool, "With --fleet: workers that were started with this --pool")
      ->type_name("NAME")
      ->needs(fleet);
  AddAccess(sub, o.coordinator);
  return fleet;
}

// Adds what a measured comparison takes, beside what a predicted one does.
void AddMeasure(CLI::App& sub, CompareOptions& o) {
  CLI::Option* measure = sub.add_flag("--measure", o.measure,
                                      "Train a few steps under each schedule, and show measured and "
                                      "simulated figures side by side; the data must be there");
  sub.add_option("--steps", o.steps, "With --measure: steps of each training (default 6)")
      ->needs(measure)
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("T");
  sub.add_option("--repeats", o.repeats,
                 "With --measure: trainings under each schedule, in turn (default 3); the median counts")
      ->needs(measure)
      ->check(CLI::Range(1, 1000))
      ->type_name("R");
  sub.add_option("--processes", o.processes,
                 "With --measure: most worker processes (default: one per rank, at most one per core)")
      ->needs(measure)
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub.add_option("--out", o.out,
                 "With --measure: keep the results of each training in a folder here (default: none)")
      ->needs(measure)
      ->check(ProblemOfPath)
      ->type_name("DIR");
  std::vector<CLI::Option*> here = AddDevice(sub, o.device);
  for (CLI::Option* option : here) option->needs(measure);
  here.push_back(sub.get_option("--out"));
  AddFleet(sub, o.fleet, "With --measure: train on workers of the coordinator, in place of this machine",
           here)
      ->needs(measure);
  for (const char* predicts :
       {"--profile", "--flops", "--bandwidth", "--latency", "--host-bandwidth", "--network", "--vary"}) {
    measure->excludes(predicts);
  }
}

// Adds the flag that lets sizes vary.
void AddVariation(CLI::App& app, Variation& vary) {
  app.add_option_function<std::vector<std::string>>(
         "--vary",
         [&vary](const std::vector<std::string>& words) {
           for (const std::string& word : words) {
             vary.microbatches |= word == "microbatches";
             vary.cuts |= word == "cuts";
             vary.activations |= word == "activations";
           }
         },
         "Try other numbers of microbatches, other cuts into stages, or recomputed activations too, and show "
         "each schedule at its best")
      ->delimiter(',')
      ->check(CLI::IsMember({"microbatches", "cuts", "activations"}))
      ->type_name("WORD,..");
}

CLI::App* AddCompare(CLI::App& app, CompareOptions& o) {
  CLI::App* sub =
      app.add_subcommand("compare", "Predict every schedule on a run file's model, or --measure them");
  sub->add_option("FILE", o.file, "The run file; its data need not be there")->required()->type_name("");
  AddNumber(*sub, "--memory", o.memory, kBudgets, "BYTES",
            "Bytes that a rank may use (default: the run file's `memory`, else no limit)");
  sub->add_option("--profile", o.profile,
                  "Measured times and bytes (docs/guide/profile.md); default: counted FLOPs")
      ->type_name("FILE");
  AddFlops(*sub, o.flops);
  AddNumber(*sub, "--bandwidth", o.bandwidth, kBandwidths, "BYTES",
            "Bandwidth of each link, in bytes per unit of time (default: infinite)");
  AddNumber(*sub, "--latency", o.latency, kTimes, "X", "Latency of each transfer (default 0)");
  AddNetwork(*sub, &o.network);
  AddHostBandwidth(*sub, &o.host_bandwidth);
  sub->add_option("--workers", o.ranks)->check(CLI::Range(1, kMaxFlagRanks))->group("");  // its former name
  sub->add_option("--ranks", o.ranks,
                  "Put every schedule on exactly W ranks; the model is cut into the stages that it needs "
                  "there, but for the run file's own schedule if it takes W ranks")
      ->check(CLI::Range(1, kMaxFlagRanks))
      ->type_name("W");
  sub->add_option("--stages", o.stages, "Cut the model into S stages (default: the run file's)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("S");
  sub->add_option("--schedules", o.schedules,
                  "Only these schedules, as in ddp,rule=cdp_v2,1f1b; may be given several times (default: "
                  "every family; with --measure also every rule, as far as the sizes allow)")
      ->type_name("S,..");
  AddVariation(*sub, o.vary);
  AddForm(*sub, &o.json);
  AddMeasure(*sub, o);
  sub->footer(Footer(
      {{"weft compare docs/runs/shakespeare.yaml", "every family, predicted"},
       {"weft compare docs/runs/shakespeare.yaml --memory 50MB --vary microbatches,activations",
        "with other sizes too"},
       {"weft compare docs/runs/shakespeare.yaml --memory 2GB", "what fits 2 GB a rank"},
       {"weft compare docs/runs/tiny.yaml --measure", "trained a few steps each"},
       {"weft compare docs/runs/tiny.yaml --measure --schedules 1f1b,gpipe,ddp,rule=cdp_v2", "these only"},
       {"weft compare run.yaml --measure --fleet --ranks 8", "on eight workers of the coordinator"}},
      "Fastest first. Schedules that do not fit the memory or the sizes follow, with the reason.\n"
      "With --measure, schedules come in the order given; one that is refused or fails has its reason."));
  return sub;
}

// Adds what says how long the jobs and transfers of a plan take.
void AddPlanCosts(CLI::App& sub, PlanOptions& o) {
  sub.add_option("--profile", o.profile,
                 "For a run file: measured times and bytes (docs/guide/profile.md); default: counted FLOPs")
      ->type_name("FILE");
  AddFlops(sub, o.flops);
  AddNumber(sub, "--bandwidth", o.bandwidth, kBandwidths, "BYTES",
            "Bandwidth of each link, in bytes per unit of time (default: the profile's, else infinite)");
  AddNumber(sub, "--latency", o.latency, kTimes, "X",
            "Latency of each transfer (default: the profile's, else 0)");
  AddNetwork(sub, &o.network);
  AddHostBandwidth(sub, &o.host_bandwidth);
}

CLI::App* AddPlan(CLI::App& app, PlanOptions& o) {
  CLI::App* sub =
      app.add_subcommand("plan", "Find the schedule that takes a step in the least time and fits");
  CLI::Option* const file =
      sub->add_option("FILE", o.file, "A run file (.yaml), or a profile of layers (.json)")->type_name("");
  CLI::Option* const workers = sub->add_option("--workers", o.workers, "Number of ranks")
                                   ->check(CLI::Range(1, kMaxPlannedRanks))
                                   ->type_name("P");
  CLI::Option* const from =
      sub->add_option("--from", o.from,
                      "In place of both: plan a run anew, at the speeds that the folder of its results shows")
          ->type_name("OUT")
          ->excludes(file)
          ->excludes(workers);
  AddNumber(*sub, "--memory", o.memory, kBudgets, "BYTES",
            "Bytes that a rank may use (default: the run file's `memory`, else no limit)");
  AddPlanCosts(*sub, o);
  sub->add_option("--microbatches", o.microbatches,
                  "For a profile: micro-batches of a step; without it, patterns alone are planned")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("B");
  sub->add_option_function<std::vector<std::string>>(
         "--vary", [&o](const std::vector<std::string>&) { o.vary_microbatches = true; },
         "microbatches: try other numbers of them than the run file's")
      ->check(CLI::IsMember({"microbatches"}))
      ->type_name("WORD");
  sub->add_option(
         "--schedule", o.schedule,
         "auto (default): every family, planned patterns and planned orders; a family, as 1f1b or "
         "lpp,groups=2,ranks=2; periodic[,k=K][,contiguous]: a pattern with a window of K micro-batches, "
         "only of stages of neighbouring layers, one a rank; or order: a pipeline with an order of its own")
      ->type_name("NAME");
  sub->add_option("--time-limit", o.time_limit, "Seconds to search (default 10); then the best found counts")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S");
  sub->add_option("-o,--output", o.output,
                  "table (default), json, or yaml: a file that run files and simulate take")
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->type_name("FORM");
  for (const char* other :
       {"--flops", "--network", "--host-bandwidth", "--microbatches", "--vary", "--schedule"})
    from->excludes(sub->get_option(other));
  sub->callback([&o] {
    if (o.from.empty() && (o.file.empty() || o.workers == 0))
      throw CLI::RequiredError("FILE and --workers, or --from");
  });
  sub->footer(Footer(
      {{"weft plan docs/runs/shakespeare.yaml --workers 2", "by counted FLOPs"},
       {"weft plan profile.json --workers 4 --memory 2GB", "measured layers, 2 GB a rank"},
       {"weft plan run.yaml --workers 4 --profile profile.json -o yaml > plan.yaml", "for a run file"},
       {"weft plan --from out/run -o yaml > plan.yaml", "as its ranks were measured"}},
      "A run file takes the plan as schedule: {file: plan.yaml}, with its stages. Nothing fits: exit code 1, "
      "and\n"
      "the least memory that would (docs/guide/plan.md)."));
  return sub;
}

CLI::App* AddProfile(CLI::App& app, ProfileOptions& o) {
  CLI::App* sub = app.add_subcommand("profile", "Measure what each layer of a run file's model costs");
  sub->add_option("FILE", o.file, "The run file")->required()->type_name("");
  sub->add_option("-o,--output", o.output, "File of the profile (default: standard output)")
      ->type_name("FILE");
  sub->add_option("--steps", o.steps, "Steps to train (default 6); the first is not counted")
      ->check(CLI::Range(2, kMaxSize))
      ->type_name("T");
  CLI::Option* const ranks =
      sub->add_option("--ranks", o.ranks,
                      "Measure the speeds of so many ranks as well, each in its own process")
          ->check(CLI::Range(1, kMaxPlannedRanks))
          ->type_name("W");
  sub->add_option("--network", o.network,
                  "With --ranks: file for their speeds and the link between processes")
      ->type_name("FILE")
      ->needs(ranks);
  ranks->needs(sub->get_option("--network"));
  AddFleet(*sub, o.fleet,
           "Measure on workers of the coordinator, in place of this machine; with --ranks, their links too",
           AddDevice(*sub, o.device));
  sub->footer(Footer(
      {{"weft profile docs/runs/tiny.yaml -o profile.json", "measure"},
       {"weft profile docs/runs/tiny.yaml -o profile.json --ranks 2 --network network.yaml", "and the ranks"},
       {"weft profile run.yaml -o profile.json --fleet --ranks 8 --network network.yaml",
        "the layers, ranks and links of eight workers"},
       {"weft compare docs/runs/tiny.yaml --profile profile.json", "predict with it"}},
      "Each layer's times and bytes for one micro-batch (docs/guide/profile.md). One process computes, so\n"
      "that nothing else runs beside a job."));
  return sub;
}

// Adds the flag of the commands that train.
void AddRecord(CLI::App& app, bool& hashes) {
  app.add_option_function<std::string>(
         "--record", [&hashes](const std::string&) { hashes = true; },
         "hashes: record a hash of each job's results in hashes.jsonl, so that weft diff finds the first job "
         "that differs from another run")
      ->check(CLI::IsMember({"hashes"}))
      ->type_name("WHAT");
}

CLI::App* AddTrain(CLI::App& app, TrainOptions& o) {
  CLI::App* sub =
      app.add_subcommand("train", "Train on this machine: coordinator, workers and progress in one command");
  sub->add_option("FILE", o.file, "The run file (docs/guide/run_file.md)")->required()->type_name("");
  CLI::Option* processes = sub->add_option("--processes", o.processes,
                                           "Worker processes (default: one per rank, at most one per core)")
                               ->check(CLI::Range(1, 4096))
                               ->type_name("N");
  CLI::Option* spares =
      sub->add_option("--spares", o.spares,
                      "Further worker processes that wait; one takes the place of a process that is lost")
          ->check(CLI::Range(0, 4096))
          ->type_name("N");
  sub->add_option("--out", o.out, "Folder of the results (default out/NAME, NAME the run's name)")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  sub->add_flag("--overwrite", o.overwrite,
                "Replace the run that the folder holds, once this one has results of its own");
  sub->add_option("--metrics", o.metrics,
                  "Serve metrics for Prometheus here; worker process i serves its own at port + 1 + i")
      ->check([](const std::string& text) {
        const auto address = ParseAddress(text);
        if (!address.ok()) return std::string(address.status().message());
        return std::string(address->is_unix ? "must be HOST:PORT, not a unix socket" : "");
      })
      ->type_name("HOST:PORT");
  sub->add_option("--plan", o.plan,
                  "Train by this plan (weft plan -o yaml), in place of the run file's schedule, stages and "
                  "micro-batches")
      ->type_name("FILE");
  sub->add_flag("--reference", o.reference,
                "Train as one plain loop in one process; every schedule ends with the same bits")
      ->excludes(processes)
      ->excludes(spares);
  sub->add_option("--until", o.until,
                  "Stop after this many of the file's steps, and leave a checkpoint to go on from")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("STEP");
  sub->add_option("--resume", o.resume,
                  "Go on from this checkpoint of the same run file, as in out/NAME/checkpoint")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  sub->add_option("--weights", o.weights,
                  "Begin with these weights: a safetensors file, or a folder of them with an index")
      ->check(ProblemOfPath)
      ->type_name("PATH");
  AddRecord(*sub, o.record_hashes);
  AddForm(*sub, &o.json, "text");
  AddDevice(*sub, o.device);
  sub->footer(Footer(
      {{"weft train docs/runs/shakespeare.yaml", "train, results in out/shakespeare"},
       {"weft train run.yaml --processes 4 --out out/second", "four processes, another folder"},
       {"weft train run.yaml --reference --out out/plain", "the same as one plain loop"},
       {"weft train run.yaml --until 100", "the first 100 steps"},
       {"weft train run.yaml --resume out/run/checkpoint", "go on where it stopped"}},
      "Ctrl-C stops all processes. What is written is listed at the end and in docs/guide/outputs.md."));
  return sub;
}

CLI::App* AddEval(CLI::App& app, EvalOptions& o) {
  CLI::App* sub = app.add_subcommand("eval", "Loss and metrics of a checkpoint on a data set");
  sub->add_option("FILE", o.file, "The run file: its model, and its data unless flags name other data")
      ->required()
      ->type_name("");
  sub->add_option(
         "--checkpoint", o.checkpoint,
         "A checkpoint, or the folder of a run that has some (default: the newest whole one in out/NAME)")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  sub->add_option("--data-images", o.images, "Images to evaluate on, in the format of MNIST, also .gz")
      ->check(ProblemOfPath)
      ->type_name("FILE");
  sub->add_option("--data-labels", o.labels, "Their labels")->check(ProblemOfPath)->type_name("FILE");
  sub->add_option("--data-cifar10", o.cifar10, "A file of CIFAR-10's binary version, as test_batch.bin")
      ->check(ProblemOfPath)
      ->type_name("FILE");
  sub->add_option("--data-text", o.text, "Text to evaluate a language model on")
      ->check(ProblemOfPath)
      ->type_name("FILE");
  sub->add_option("--data-arrays", o.arrays, "NumPy files to evaluate an exported model on, one a field")
      ->delimiter(',')
      ->check([](const std::string& array) {
        const size_t at = array.find('=');
        return at == std::string::npos || at == 0 || at + 1 == array.size() ? "takes FIELD=FILE" : "";
      })
      ->check(ProblemOfPath)
      ->type_name("FIELD=FILE,..");
  sub->add_flag("--validation", o.validation, "Evaluate on the held-out data of the run file's `validate`");
  sub->add_option("--samples", o.samples,
                  "Evaluate on the first N samples (default: all, or as many as `validate` says)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N");
  AddForm(*sub, &o.json);
  AddDevice(*sub, o.device);
  sub->footer(
      Footer({{"weft eval docs/runs/shakespeare.yaml", "on its own data"},
              {"weft eval run.yaml --checkpoint out/run/checkpoint-0", "the initial weights"},
              {"weft eval run.yaml --data-text other.txt -o json", "on other data"},
              {"weft eval run.yaml --data-arrays x=x.npy,y=y.npy", "an exported model on other data"}},
             "Each sample counts once. Batch norms use their running averages, and nothing is dropped.\n"
             "An exported model is evaluated as its module in evaluation mode, with its metrics."));
  return sub;
}

CLI::App* AddDiff(CLI::App& app, DiffOptions& o) {
  CLI::App* sub = app.add_subcommand("diff", "Find the first job whose results differ between two runs");
  sub->add_option("A", o.a, "Output folder of a run")->required()->type_name("");
  sub->add_option("B", o.b, "Output folder of another run of the same training, or of its --reference")
      ->required()
      ->type_name("");
  AddForm(*sub, &o.json);
  sub->footer(Footer(
      {{"weft train run.yaml --record hashes", "a run that can be compared"},
       {"weft train run.yaml --reference --record hashes --out out/plain", "its yardstick"},
       {"weft diff out/run out/plain", "which job differs first"}},
      "Exit codes: 0 if they are equal, 1 if they differ, 78 if they cannot be compared. Runs without\n"
      "hashes are compared by their losses and checkpoints."));
  return sub;
}

CLI::App* AddGenerate(CLI::App& app, GenerateOptions& o) {
  CLI::App* sub = app.add_subcommand("generate", "Write text with a trained model");
  sub->add_option("RUN", o.source, "Folder of a training's results, as out/shakespeare; or a run file")
      ->required()
      ->type_name("");
  sub->add_option("--prompt", o.prompt,
                  "Text to go on from (default: a new line); where the data are ids of tokens: ids")
      ->type_name("TEXT");
  sub->add_option("--tokens", o.tokens, "Tokens to write; of a text, bytes (default 200)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("N");
  sub->add_option("--temperature", o.temperature,
                  "Below 1: likelier tokens more often; 0: the likeliest each time (default 0.8)")
      ->check(CLI::Range(0.0, 100.0))
      ->type_name("T");
  sub->add_option("--top-k", o.top_k, "Draw from the K likeliest tokens only (default: from all)")
      ->check(CLI::Range(1, kMaxSize))
      ->type_name("K");
  sub->add_option("--seed", o.seed, "Seed of the draws; the same seed writes the same text (default 1)")
      ->type_name("N");
  sub->add_option("--checkpoint", o.checkpoint,
                  "A checkpoint, or the folder of a run that has some (default: the newest whole one in RUN; "
                  "for a run file in out/NAME)")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  AddForm(*sub, &o.json, "text");
  AddDevice(*sub, o.device);
  sub->footer(
      Footer({{"weft generate out/shakespeare --prompt ROMEO: --tokens 400", "a scene"},
              {"weft generate out/shakespeare --temperature 0", "the likeliest text"},
              {"weft generate run.yaml --checkpoint out/run/checkpoint --seed 7", "another draw"}},
             "A token is a byte of text. The model reads the last tokens, as many as its context has."));
  return sub;
}

CLI::App* AddCheckpoint(CLI::App& app, CheckpointOptions& o) {
  CLI::App* sub = app.add_subcommand("checkpoint", "List the checkpoints of a run, or verify them");
  sub->add_option("ACTION", o.action, "ls: what there is; verify: read every byte of it")
      ->required()
      ->check(CLI::IsMember({"ls", "verify"}))
      ->type_name("");
  sub->add_option("FOLDER", o.folder,
                  "The output folder of a run, or one checkpoint; or a run file, for its out/NAME")
      ->required()
      ->type_name("");
  AddForm(*sub, &o.json);
  sub->footer(Footer({{"weft checkpoint ls out/shakespeare", "which there are, and when they were saved"},
                      {"weft checkpoint verify out/shakespeare", "whether all bytes are what was written"},
                      {"weft checkpoint verify out/run/checkpoint-40 -o json", "one, for a script"}},
                     "With damage, verify names each file and the checkpoint to go on from; exit code 78."));
  return sub;
}

CLI::App* AddExportWeights(CLI::App& app, ExportWeightsOptions& o) {
  CLI::App* sub = app.add_subcommand("export-weights", "Write the weights of a checkpoint as one file");
  sub->add_option("FOLDER", o.folder, "A checkpoint, or the output folder of a run: its newest whole one")
      ->required()
      ->type_name("");
  sub->add_option("FILE", o.file, "The safetensors file to write; one that is there is replaced")
      ->required()
      ->type_name("");
  AddForm(*sub, &o.json, "text");
  sub->footer(Footer({{"weft export-weights out/run weights.safetensors", "the names are the model's"},
                      {"weft train run.yaml --weights weights.safetensors", "begin another run with them"}},
                     "For a state_dict with buffers and tied names, use weft.load_checkpoint in Python."));
  return sub;
}

// Adds a command that talks to a coordinator, with the options that all of those take.
CLI::App* AddRunsCommand(CLI::App& app, const std::string& name, const std::string& help,
                         CoordinatorOptions& o) {
  CLI::App* sub = app.add_subcommand(name, help);
  AddAccess(*sub, o);
  AddForm(*sub, &o.json);
  return sub;
}

void AddRunNumber(CLI::App& sub, uint64_t& run) {
  sub.add_option_function<std::string>(
         "RUN",
         [&run](const std::string& text) {
           if (!absl::SimpleAtoi(text, &run) || run == 0) {
             throw CLI::ValidationError(absl::StrCat(
                 "\"", text.substr(0, 64), "\" is not the number of a run; weft ls shows the numbers"));
           }
         },
         "The run's number, as weft ls shows it")
      ->required()
      ->type_name("");
}

// Adds whether, and how long, a command waits for what it has ordered.
void AddWaiting(CLI::App& sub, bool& detach, double& timeout) {
  sub.add_flag("--detach", detach, "Order it and leave");
  sub.add_option("--timeout", timeout, "Longest time to wait (default: no limit); then exit code 124")
      ->check(CLI::Range(0.001, 1e9))
      ->type_name("S");
}

CLI::App* AddSubmit(CLI::App& app, SubmitOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "submit", "Submit a training to a coordinator, and watch it", o.coordinator);
  sub->add_option("FILE", o.file, "The run file; its data paths are those of the workers' machines")
      ->required()
      ->type_name("");
  sub->add_option("--processes", o.processes, "Worker processes to run on (default: one per rank)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option(
         "--out", o.out,
         "Folder of the results, which coordinator and workers see under the same path (default: NAME-RUN "
         "below the coordinator's --output-root)")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  sub->add_option("--plan", o.plan, "The schedule, stages and micro-batches, as in weft train")
      ->type_name("FILE");
  sub->add_flag("--overwrite", o.overwrite,
                "Replace the run that the folder holds, once this one has results of its own");
  sub->add_option("--until", o.until,
                  "Stop after this many of the file's steps, and leave a checkpoint to go on from")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("STEP");
  sub->add_option("--resume", o.resume,
                  "Go on from this checkpoint of the same run file, which this machine must see too")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  AddRecord(*sub, o.record_hashes);
  sub->add_option("--priority", o.priority,
                  "Start before waiting runs of a lower priority; what runs goes on (default 0)")
      ->check(CLI::Range(-QueueTerms::kMaxPriority, QueueTerms::kMaxPriority))
      ->type_name("N");
  sub->add_option("--pool", o.pool,
                  "Run on workers that were started with this --pool (default: on those without one)")
      ->type_name("NAME");
  sub->add_flag("--detach", o.detach, "Print the run's number and leave");
  sub->footer(Footer({{"weft submit run.yaml", "train and watch"},
                      {"weft submit run.yaml --detach", "print the run's number only"},
                      {"weft submit run.yaml --processes 2 --out /data/run", "on two workers"}},
                     "Ctrl-C ends the watching; the run goes on."));
  return sub;
}

CLI::App* AddList(CLI::App& app, ListOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "ls", "List the runs of a coordinator", o.coordinator);
  sub->footer(
      Footer({{"weft ls", "runs of the coordinator on this machine"},
              {"weft ls --coordinator 10.0.0.5:7070", "of another"},
              {"weft ls -o json | jq '.[] | select(.state == \"running\") | .run'", "for a script"}}));
  return sub;
}

CLI::App* AddWorkers(CLI::App& app, WorkersOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "workers", "List the worker processes of a coordinator", o.coordinator);
  sub->footer(
      Footer({{"weft workers", "who is connected, and what each one does"},
              {"weft workers --coordinator 10.0.0.5:7070 -o json", "of another coordinator, for a script"}}));
  return sub;
}

CLI::App* AddTop(CLI::App& app, TopOptions& o) {
  CLI::App* sub = AddRunsCommand(
      app, "top", "Show what each worker does: its job, busy, idle by cause, memory by class", o.coordinator);
  sub->add_flag("--once", o.once, "Show it once, of the time since the runs began");
  sub->add_option("--interval", o.interval, "Time between two looks; shares are of this time")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str()
      ->type_name("S");
  sub->footer(Footer({{"weft top", "every second, until Ctrl-C"},
                      {"weft top -o json | jq '.[] | [.name, .busy_share]'", "once, for a script"}}));
  return sub;
}

CLI::App* AddDoctor(CLI::App& app, DoctorOptions& o) {
  CLI::App* sub = AddRunsCommand(
      app, "doctor", "Look for what keeps Weft from working here, or makes it slow", o.coordinator);
  sub->add_flag("--machine", o.machine_only, "Look at this machine alone, and ask no coordinator");
  sub->footer(Footer({{"weft doctor --machine", "processors, memory, limits, shared memory, GPUs, RDMA"},
                      {"weft doctor --coordinator 10.0.0.5:7070 --tls certs/viewer",
                       "also the certificates, the coordinator and its workers"}}));
  return sub;
}

CLI::App* AddSlurm(CLI::App& app, SlurmOptions& o) {
  CLI::App* sub = app.add_subcommand("slurm", "Print the batch script by which Slurm trains a run file");
  sub->add_option("FILE", o.file, "The run file, which all nodes must see under the same path")
      ->required()
      ->type_name("");
  sub->add_option("--out", o.out, "Folder of the results, likewise (default: out/NAME)")
      ->check(ProblemOfPath)
      ->type_name("DIR");
  sub->add_option("--nodes", o.nodes, "Number of nodes")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--tasks-per-node", o.tasks_per_node,
                  "Worker processes of a node (default: as many as the ranks need)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  sub->add_flag("--gpus", o.gpus, "Give each worker process a GPU, and compute on it");
  sub->add_option("--grace", o.grace, "Time before Slurm's limit in which a checkpoint is saved")
      ->check(CLI::Range(10, 3600))
      ->capture_default_str()
      ->type_name("S");
  sub->add_option("--sbatch", o.sbatch, "A further option of sbatch; may be repeated")->type_name("OPTION");
  sub->footer(
      Footer({{"weft slurm run.yaml --nodes 2 --sbatch=--time=12:00:00 > job.sh", "then: sbatch job.sh"},
              {"weft slurm run.yaml --nodes 2 --tasks-per-node 8 --gpus --sbatch=--partition=a100 > job.sh",
               "16 GPUs"}}));
  return sub;
}

CLI::App* AddDescribe(CLI::App& app, DescribeOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "describe", "Show a run: state, reason, events, what each rank does",
                                 o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->footer(
      Footer({{"weft describe 3", "run 3"}, {"weft describe 3 -o json", "with all figures of its ranks"}}));
  return sub;
}

CLI::App* AddLogs(CLI::App& app, LogsOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "logs", "Show what workers and coordinator say about a run", o.coordinator);
  sub->add_option("RUN", o.run, "A run's number, as weft ls shows it; or the output folder of a run")
      ->required()
      ->type_name("");
  sub->add_flag("-f,--follow", o.follow, "Go on with new lines until the run has ended");
  sub->add_option("--rank", o.rank, "Leave out lines of worker processes without this rank")
      ->check(CLI::Range(0, kMaxFlagRanks))
      ->type_name("R");
  sub->footer(Footer({{"weft logs 3", "last lines of run 3"},
                      {"weft logs 3 -f --rank 2", "new lines too, of rank 2's process and the coordinator"},
                      {"weft logs out/shakespeare -o json", "lines of a folder, for a script"}},
                     "With -o json each line is an object. Ctrl-C ends the following; the run goes on."));
  return sub;
}

CLI::App* AddExplain(CLI::App& app, ExplainOptions& o) {
  CLI::App* sub = AddRunsCommand(
      app, "explain", "Say where a run's time went that its plan does not have, or why it does not run",
      o.coordinator);
  sub->add_option("RUN", o.run,
                  "A run's number, as weft ls shows it; or the output folder of a run, as out/shakespeare")
      ->required()
      ->type_name("");
  CLI::Option* const step =
      sub->add_option("--step", o.step, "Step to explain (default: that of median time)")
          ->check(CLI::Range(0, 1'000'000'000))
          ->type_name("T");
  CLI::Option* const profile =
      sub->add_option("--profile", o.profile,
                      "Plan by this profile (default: that of the plan that the run keeps, else its own job "
                      "times)")
          ->type_name("FILE");
  CLI::Option* const own_times =
      sub->add_flag("--own-times", o.own_times, "Plan by the run's own job times")->excludes(profile);
  CLI::Option* const now = sub->add_flag(
      "--now", o.now,
      "Say what each rank of a coordinator's run does or waits for now (default where it stands still)");
  CLI::Option* const rank =
      sub->add_option("--rank", o.rank, "The same, of this rank and of those in its chain of waits")
          ->check(CLI::Range(0, kMaxFlagRanks))
          ->type_name("R");
  for (CLI::Option* const waits : {now, rank}) waits->excludes(step)->excludes(profile)->excludes(own_times);
  sub->footer(
      Footer({{"weft explain out/shakespeare", "largest differences first"},
              {"weft explain 3", "of a coordinator's run, which may still go on; why it stands still"},
              {"weft explain 3 --rank 2", "what rank 2 waits for now, and what that waits for"},
              {"weft explain out/run --profile profile.json", "against times measured elsewhere"}},
             "The seconds add up to the difference of the measured and the planned makespan of the step."));
  return sub;
}

CLI::App* AddTrace(CLI::App& app, TraceOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "trace", "Say what the trace of a run holds, and export it", o.coordinator);
  sub->add_option("RUN", o.run,
                  "A run's number, as weft ls shows it; the output folder of a run; or a trace.json")
      ->required()
      ->type_name("");
  sub->add_option("--otlp", o.otlp,
                  "Write the jobs as OpenTelemetry spans, with links along the job graph (OTLP JSON)")
      ->type_name("FILE");
  sub->add_option("--perfetto", o.perfetto, "Write the trace itself, which ui.perfetto.dev opens")
      ->type_name("FILE");
  sub->footer(
      Footer({{"weft trace out/shakespeare", "steps, jobs and times"},
              {"weft trace out/shakespeare --otlp spans.json", "spans for Jaeger or Tempo"},
              {"weft trace 3 --coordinator 10.0.0.5:7070 --perfetto now.json", "of a coordinator's run"}},
             "The trace of a run that goes on has its last steps up to now."));
  return sub;
}

CLI::App* AddWait(CLI::App& app, WaitOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "wait", "Wait until a run has ended: finished, failed or cancelled", o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->add_option("--timeout", o.timeout, "Longest time to wait (default: no limit); then exit code 124")
      ->check(CLI::Range(0.001, 1e9))
      ->type_name("S");
  sub->footer(Footer({{"weft wait 3", "until run 3 has ended"},
                      {"weft wait 3 --timeout 3600 && echo trained", "for an hour at most"}},
                     "The exit code is 0 only if the run finished, 124 if the time was over before."));
  return sub;
}

CLI::App* AddCancel(CLI::App& app, CancelOptions& o) {
  CLI::App* sub = AddRunsCommand(app, "cancel", "Stop a run", o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->add_option("--reason", o.reason, "What others will read about it")->type_name("TEXT");
  sub->add_flag("--save", o.save, "Save a checkpoint first, from which weft submit --resume goes on");
  sub->footer(Footer({{"weft cancel 3", "stop run 3"},
                      {"weft cancel 3 --save", "save a checkpoint, then stop it"},
                      {"weft cancel 3 --reason 'the learning rate is wrong'", "and say why"}}));
  return sub;
}

CLI::App* AddMove(CLI::App& app, MoveOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "move", "Move ranks of a run to a worker, without losing a step", o.coordinator);
  AddRunNumber(*sub, o.run);
  sub->add_option("--rank", o.ranks, "Rank that moves; several: 0,2, or the flag again")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, kMaxFlagRanks - 1))
      ->type_name("R");
  sub->add_option("--to", o.to, "The worker that takes them, by its name or the number of its process")
      ->required()
      ->type_name("WORKER");
  sub->add_option("--reason", o.reason, "What others will read about it")->type_name("TEXT");
  AddWaiting(*sub, o.detach, o.timeout);
  sub->footer(
      Footer({{"weft move 3 --rank 1 --to gpu-7", "rank 1 of run 3 goes to the worker gpu-7"},
              {"weft move 3 --rank 0,1 --to 4", "two ranks go to process 4, as weft workers counts"}},
             "The worker is free, or has ranks of the run. The run stops behind the next step whose\n"
             "state is kept, and begins again with the ranks there and all others where they are. A\n"
             "worker that has no ranks left is free. The exit code is 0 only if the ranks are there."));
  return sub;
}

CLI::App* AddDrain(CLI::App& app, DrainOptions& o) {
  CLI::App* sub =
      AddRunsCommand(app, "drain", "Let a worker leave when its run goes on elsewhere", o.coordinator);
  sub->add_option("WORKER", o.worker, "The worker's name, or the number of its process")
      ->required()
      ->type_name("");
  sub->add_option("--reason", o.reason, "What others will read about it")->type_name("TEXT");
  AddWaiting(*sub, o.detach, o.timeout);
  sub->footer(
      Footer({{"weft drain gpu-7", "before its machine is shut down"},
              {"weft drain 4 --timeout 600", "process 4; for ten minutes at most"}},
             "The same as SIGTERM to the worker: its run makes no step twice, and the process ends."));
  return sub;
}

CLI::App* AddCerts(CLI::App& app, CertsOptions& o) {
  CLI::App* sub =
      app.add_subcommand("certs", "Make certificates for TLS between coordinator, workers and clients");
  sub->add_option(
         "ACTION", o.action,
         "init: an authority, unless it is there, and a folder of certificates for each role; add: a "
         "folder more; token: a user's token, printed once, and its hash in FOLDER/tokens")
      ->required()
      ->check(CLI::IsMember({"init", "add", "token"}))
      ->type_name("");
  sub->add_option("FOLDER", o.folder, "Where the folders are made")->required()->type_name("");
  sub->add_option(
         "--host", o.hosts,
         "A name or an IP address by which others reach the coordinator, for programs that compare it; "
         "with add that of the machine with this certificate, a coordinator's or a worker's; may be "
         "repeated")
      ->take_all()
      ->type_name("HOST");
  sub->add_option("--days", o.days, "Days for which the certificates are valid")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str()
      ->type_name("N");
  CLI::Option* role =
      sub->add_option("--role", o.role,
                      "With add and token: admin, submitter, viewer, worker, metrics or coordinator")
          ->type_name("ROLE");
  CLI::Option* name =
      sub->add_option("--name", o.name, "With add and token: whose it is; of add also the folder's name")
          ->type_name("NAME");
  AddForm(*sub, &o.json, "text");
  sub->callback([&o, role, name] {
    const bool adds = o.action != "init";
    if (adds && (role->empty() || name->empty())) throw CLI::RequiredError("--role and --name");
    if (!adds && !(role->empty() && name->empty()))
      throw CLI::ValidationError("--role and --name go with add and token");
  });
  sub->footer(
      Footer({{"weft certs init certs --host 10.0.0.1", "an authority, and a folder for each role"},
              {"weft certs add certs --role submitter --name alice", "one for a user"},
              {"weft certs token certs --role viewer --name bob > token", "or a token, for --token-file"},
              {"weft-coordinator --listen 10.0.0.1:7070 --tls certs/coordinator", "who uses it"}},
             "Running it again replaces the certificates; programs that use them take the new ones\n"
             "within seconds. docs/guide/security.md says which role may do what."));
  return sub;
}

CLI::App* AddConfig(CLI::App& app, ConfigOptions& o) {
  CLI::App* sub = app.add_subcommand("config", "Check a configuration file, or show what is in force");
  sub->add_option("ACTION", o.action, "check: whether a file is right; show: the settings in force")
      ->required()
      ->check(CLI::IsMember({"check", "show"}))
      ->type_name("");
  CLI::Option* const file =
      sub->add_option("FILE", o.file, "The file (default: the program's own)")->type_name("");
  CLI::Option* const program =
      sub->add_option("--program", o.program,
                      "Whose: weft (default), weft-coordinator or weft-worker; check knows it by the names "
                      "coordinator.yaml and worker.yaml")
          ->check(CLI::IsMember({"weft", "weft-coordinator", "weft-worker"}))
          ->type_name("PROGRAM");
  sub->add_option("--unit", o.unit,
                  "With show: the settings of the daemon that this unit of systemd starts, as weft-worker@0, "
                  "with its environment files; or the path of a unit")
      ->type_name("UNIT")
      ->excludes(file)
      ->excludes(program);
  sub->callback([&o] {
    if (o.action == "check" && !o.unit.empty()) throw CLI::ValidationError("--unit goes with show");
  });
  sub->add_flag("--origin", o.origins, "With show: where each value comes from");
  AddForm(*sub, &o.json, "text");
  sub->footer(
      Footer({{"weft config check /etc/weft/coordinator.yaml", "exit code 78 and the line if it is wrong"},
              {"weft config show --origin", "what commands take, and from where"},
              {"weft config show --program weft-worker --origin", "the same of a worker on this machine"},
              {"weft config show --unit weft-coordinator --origin", "what systemd and its files give it"}},
             "Built-in values, then the file, then WEFT_ variables, then flags: later ones win."));
  return sub;
}

CLI::App* AddCompletion(CLI::App& app, std::string& shell) {
  CLI::App* sub =
      app.add_subcommand("completion", "Print a script that lets a shell complete commands and flags");
  sub->add_option("SHELL", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(CompletionShells()))
      ->type_name("");
  sub->footer(Footer({{"source <(weft completion bash)", "in ~/.bashrc"},
                      {"source <(weft completion zsh)", "in ~/.zshrc, after compinit"},
                      {"weft completion fish > ~/.config/fish/completions/weft.fish", "once"}}));
  return sub;
}

// Returns the file of the user who runs the program; "" where there is no home.
std::string ClientConfigFile() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return absl::StrCat(config, "/weft/config.yaml");
  const char* const home = std::getenv("HOME");
  return home == nullptr ? "" : absl::StrCat(home, "/.config/weft/config.yaml");
}

// Adds what the program itself answers.
void DescribeProgram(CLI::App& app) {
  app.set_version_flag("--version", absl::StrCat("weft ", Release()));
  app.set_help_flag("-h,--help", "This help; each command has its own: weft simulate --help");
  app.require_subcommand(1);
  app.footer(ProgramFooter());
}

// Adds the flags of every command: its help, and whether its output has colours.
void AddCommonFlags(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands({})) {
    sub->set_help_flag("-h,--help", "This help");
    sub->add_option_function<std::string>(
           "--color",
           [](const std::string& when) {
             SetColourMode(when == "always"  ? ColourMode::kAlways
                           : when == "never" ? ColourMode::kNever
                                             : ColourMode::kAuto);
           },
           "Colours: auto (default; on a terminal, unless NO_COLOR is set), always or never")
        ->check(CLI::IsMember({"auto", "always", "never"}))
        ->type_name("WHEN");
  }
}

// Returns the words between braces in CLI11's description of a set of values: "{table,json}".
std::vector<std::string> ChoicesOf(CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const Family& family : Families()) names.push_back(family.name);
  return names;
}

CompletedValue ValueOf(CLI::Option& option) {
  using Kind = CompletedValue::Kind;
  if (option.get_items_expected_max() == 0) return {};
  CompletedValue value = {Kind::kAny, ChoicesOf(option)};
  const std::string type = option.get_type_name(), name = option.get_name();
  if (name == "FILE" || name == "FOLDER" || name == "SCHEDULE" || absl::StartsWith(type, "FILE"))
    value.kind = Kind::kFile;
  if (absl::StartsWith(type, "DIR")) value.kind = Kind::kFolder;
  if (name == "SCHEDULE" || name == "--schedules") value.choices = FamilyNames();
  if (absl::StartsWith(type, "DEVICE")) value.choices = {"cpu", "cuda", "auto"};
  return value;
}

// Returns the part of a description that fits a line of a list: up to where a sentence's first part ends.
std::string Brief(const std::string& help) {
  return help.substr(0, help.find_first_of(";(\n") == std::string::npos
                            ? help.size()
                            : std::max<size_t>(1, help.find_first_of(";(\n")));
}

std::vector<CompletedFlag> CompletedFlagsOf(CLI::App& app) {
  std::vector<CompletedFlag> flags;
  for (CLI::Option* option : app.get_options({})) {
    CompletedFlag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (flag.names.empty()) continue;
    flag.help = std::string(absl::StripAsciiWhitespace(Brief(option->get_description())));
    flag.value = ValueOf(*option);
    flag.repeats = option->get_expected_max() > 1;
    flags.push_back(std::move(flag));
  }
  return flags;
}

// Returns the words that the program takes, read from its parser.
std::string CompletionOf(CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  for (CLI::App* sub : app.get_subcommands({})) {
    CompletedCommand command = {sub->get_name(), sub->get_description(), CompletedFlagsOf(*sub), {}};
    for (CLI::Option* option : sub->get_options({})) {
      if (!option->get_positional()) continue;
      const CompletedValue value = ValueOf(*option);
      if (value.kind > command.argument.kind) command.argument.kind = value.kind;
      command.argument.choices.insert(command.argument.choices.end(), value.choices.begin(),
                                      value.choices.end());
      // The argument is not a number of a run, but the folder of one.
      const std::string& name = command.name;
      if (name == "generate" || name == "trace" || name == "logs")
        command.argument.kind = CompletedValue::Kind::kFile;
    }
    commands.push_back(std::move(command));
  }
  return CompletionScript(shell, commands, CompletedFlagsOf(app));
}

// Returns the help with lines that the terminal can show: descriptions go on under their beginning.
std::string HelpText(CLI::App& app) {
  constexpr int kDescriptions = 30;  // the column of descriptions in CLI11's help
  const int width = std::max(OutputStyle().width, 60);
  std::string out;
  bool examples = false;  // true from the examples on, which stand as they were written
  for (const absl::string_view line : absl::StrSplit(app.help(), '\n')) {
    examples |= absl::StartsWith(line, "Example");
    const bool entry = absl::StartsWith(line, "  ") && !examples;
    if (!out.empty()) out += '\n';
    if (static_cast<int>(line.size()) <= width || !entry || line.size() <= kDescriptions) {
      absl::StrAppend(&out, line);
      continue;
    }
    // Names stay as they stand; the words behind them are broken.
    const absl::string_view words = line.substr(kDescriptions);
    const std::string text = WrapText(words, width - kDescriptions);
    absl::StrAppend(&out, line.substr(0, kDescriptions),
                    absl::StrReplaceAll(text, {{"\n", "\n" + std::string(kDescriptions, ' ')}}));
  }
  return out;
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

// Explains arguments that CLI11 refused.
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

// Answers a command line that is not understood, or asks for help or the version.
CommandLine Answer(CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // version
    app.exit(error);
    return {std::nullopt, kExitOk};
  }
  if (arguments.empty()) std::fputs(HelpText(app).c_str(), stderr);
  PrintMessage(Explain(app, arguments, error));
  const std::string first = arguments.empty() ? "" : arguments[0];
  const std::vector<std::string> names = NamesOf(app);
  const bool known = std::find(names.begin(), names.end(), first) != names.end();
  if (!first.empty()) PrintMessage(absl::StrCat("see weft ", known ? first + " " : "", "--help"));
  return {std::nullopt, kExitUsage};
}

// The parser of all commands, with what they fill.
class CommandParser {
 public:
  CommandParser() {
    DescribeProgram(app_);
    Add(AddTrain);
    Add(AddEval);
    Add(AddGenerate);
    Add(AddCheckpoint);
    Add(AddExportWeights);
    Add(AddSimulate);
    Add(AddCompare);
    Add(AddPlan);
    Add(AddProfile);
    Add(AddDiff);
    Add(AddExplain);
    Add(AddSubmit);
    Add(AddList);
    Add(AddWorkers);
    Add(AddTop);
    Add(AddDoctor);
    Add(AddSlurm);
    Add(AddDescribe);
    Add(AddLogs);
    Add(AddTrace);
    Add(AddWait);
    Add(AddCancel);
    Add(AddMove);
    Add(AddDrain);
    Add(AddCerts);
    Add(AddConfig);
    completion_ = AddCompletion(app_, shell_);
    AddCommonFlags(app_);
    settings_.emplace(app_, SettingsOptions{ClientConfigFile(),
                                            UnknownName,
                                            {std::begin(kSharedFlags), std::end(kSharedFlags)},
                                            {{"token-file", "WEFT_TOKEN"}}});
  }

  CommandLine Parse(std::vector<std::string> arguments) {
    PutConfigFirst(&arguments);
    try {
      ParseArguments(arguments);
    } catch (const CLI::CallForHelp&) {
      return {std::nullopt, PrintData(HelpText(app_))};
    } catch (const CLI::ParseError& error) {
      const auto blame = settings_->Blame(error);
      if (blame.has_value()) return {std::nullopt, Fail(kExitBadConfiguration, *blame)};
      return Answer(app_, Commandless(arguments), error);
    }
    if (completion_->parsed()) return {std::nullopt, PrintData(CompletionOf(app_, shell_))};
    for (const auto& [sub, make] : commands_) {
      if (!sub->parsed()) continue;
      Command command = make();
      if (auto* const config = std::get_if<ConfigOptions>(&command)) config->own = settings_->file();
      return {std::move(command), kExitOk};
    }
    return {std::nullopt, kExitUsage};
  }

  // Returns what is wrong with the configuration file for a command; nothing for other mistakes, as an
  // argument that is missing.
  std::optional<std::string> Try(const std::string& file, const std::string& command) {
    try {
      ParseArguments({"--config", file, command});
    } catch (const CLI::ParseError& error) {
      return settings_->Blame(error);
    }
    return std::nullopt;
  }

  std::vector<Setting> SharedSettings() {
    std::vector<Setting> shared;
    for (Setting& setting : settings_->List(app_.get_subcommand(kCommandWithAll))) {
      if (std::find(std::begin(kSharedFlags), std::end(kSharedFlags), setting.name) != std::end(kSharedFlags))
        shared.push_back(std::move(setting));
    }
    return shared;
  }

  std::vector<std::string> Commands() const { return NamesOf(app_); }

  static constexpr const char* kSharedFlags[] = {"coordinator", "tls", "insecure", "token-file"};
  static constexpr const char* kCommandWithAll = "ls";

 private:
  // The options of a command live as long as what reads them.
  template <typename Options>
  void Add(CLI::App* (*make)(CLI::App&, Options&)) {
    const auto options = std::make_shared<Options>();
    commands_.emplace_back(make(app_, *options), [options] { return Command(*options); });
  }

  void ParseArguments(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app_.parse(std::move(arguments));
  }

  // Moves --config FILE to the front, where the program has it, whatever the command.
  static void PutConfigFirst(std::vector<std::string>* arguments) {
    for (size_t i = 0; i < arguments->size() && (*arguments)[i] != "--"; ++i) {
      const bool joined = absl::StartsWith((*arguments)[i], "--config=");
      if (!joined && ((*arguments)[i] != "--config" || i + 1 == arguments->size())) continue;
      std::rotate(arguments->begin(), arguments->begin() + static_cast<std::ptrdiff_t>(i),
                  arguments->begin() + static_cast<std::ptrdiff_t>(i) + (joined ? 1 : 2));
      return;
    }
  }
  // Returns the arguments without the --config FILE at the front.
  static std::vector<std::string> Commandless(const std::vector<std::string>& arguments) {
    if (arguments.empty() || !absl::StartsWith(arguments[0], "--config")) return arguments;
    return {arguments.begin() + std::min<std::ptrdiff_t>(arguments[0] == "--config" ? 2 : 1,
                                                         static_cast<std::ptrdiff_t>(arguments.size())),
            arguments.end()};
  }

  CLI::App app_{"Weft trains neural networks on many ranks, with the parallel scheme as a value.", "weft"};
  std::vector<std::pair<CLI::App*, std::function<Command()>>> commands_;
  std::string shell_;
  const CLI::App* completion_ = nullptr;
  std::optional<Settings> settings_;
};

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  return CommandParser().Parse({argv + 1, argv + argc});
}

std::optional<std::string> CheckClientConfig(const std::string& file) {
  // Each command with a section, and one that takes what stands above them.
  std::vector<std::string> commands = CommandParser().Commands();
  for (const std::string& command : commands) {
    if (auto wrong = CommandParser().Try(file, command); wrong.has_value()) return wrong;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<Setting>> ClientSettings(const std::string& file) {
  CommandParser parser;
  const std::string place = file.empty() ? "/dev/null" : file;
  if (auto wrong = parser.Try(place, CommandParser::kCommandWithAll); wrong.has_value())
    return absl::InvalidArgumentError(*wrong);
  return parser.SharedSettings();
}

}  // namespace weft
