#include "client/commands/generate_command.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/run_files.h"
#include "client/commands/checkpoint_command.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/files/run_folder.h"
#include "client/training/worker_task.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "run/text_model.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

absl::StatusOr<RunSpec> ReadRun(const GenerateOptions& options) {
  std::error_code ignored;
  if (fs::is_directory(options.source, ignored))
    return ReadRunOfFolder(options.source, "give the run file instead, and the checkpoint with --checkpoint");
  if (const absl::Status readable = CheckReadable(options.source); !readable.ok()) return readable;
  if (!fs::exists(options.source, ignored))
    return absl::InvalidArgumentError(
        absl::StrCat(options.source, ": there is no such folder of a run, and no such run file"));
  return ReadRunFile(options.source, RunFileData::kIgnored);
}

// The newest whole one: the run's last, or one on the way of a run that has not ended.
absl::StatusOr<std::string> CheckpointOf(const GenerateOptions& options, const RunSpec& spec) {
  if (!options.checkpoint.empty()) return CheckpointToRead(options.checkpoint);
  std::error_code ignored;
  const bool folder = fs::is_directory(options.source, ignored);
  return CheckpointToRead(folder ? options.source : absl::StrCat("out/", spec.name));
}

// The bytes of a text; or, where the run's data are ids of tokens, these.
absl::StatusOr<std::vector<int64_t>> TokensOf(const std::string& prompt, const RunSpec& spec) {
  if (prompt.empty())
    return absl::InvalidArgumentError("--prompt is empty; the model needs at least one token");
  std::vector<int64_t> tokens;
  if (!ReadsTokenIds(spec)) {
    for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  for (const auto word : absl::StrSplit(prompt, absl::ByAnyChar(", \n\t"), absl::SkipEmpty())) {
    int64_t token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--prompt: \"", word.substr(0, 64),
          "\" is not a token; the model was trained on ids of "
          "tokens (data.text.tokens, or arrays), so the prompt is ids too, as in --prompt \"17 4 99\""));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return absl::InvalidArgumentError("--prompt names no token");
  return tokens;
}

absl::Status CheckPrompt(const std::vector<int64_t>& prompt, const TextModel& text) {
  for (const int64_t token : prompt) {
    if (token >= 0 && token < text.vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--prompt: token ", token, " is not in the model's vocabulary, 0 to ", text.vocabulary - 1));
  }
  return absl::OkStatus();
}

// The worker reads only as many tokens as the model's context has.
std::string Request(const GenerateOptions& options, const std::vector<int64_t>& prompt,
                    const TextModel& text) {
  const auto context = static_cast<size_t>(text.context);
  const size_t first = prompt.size() > context ? prompt.size() - context : 0;
  return Json{
      {"prompt", std::vector<int64_t>(prompt.begin() + static_cast<std::ptrdiff_t>(first), prompt.end())},
      {"tokens", options.tokens},
      {"temperature", options.temperature},
      {"top_k", options.top_k},
      {"seed", options.seed}}
      .dump();
}

// Prints the generated text as it comes.
class Page {
 public:
  Page(const GenerateOptions& options, bool ids)
      : prompt_(options.prompt), json_(options.json), ids_(ids), terminal_(isatty(STDOUT_FILENO) == 1) {}

  absl::Status Add(int64_t token) {
    std::string now;
    if (tokens_.empty()) now = prompt_;
    absl::StrAppend(&now, ids_ ? absl::StrCat(" ", token) : std::string(1, static_cast<char>(token)));
    if (!ids_) text_ += static_cast<char>(token);
    tokens_.push_back(token);
    return json_ ? absl::OkStatus() : Print(now);
  }

  // Ends the last line.
  ExitCode Finish(const RunSpec& spec, const std::string& checkpoint) {
    if (!json_) return Print("\n").ok() ? kExitOk : kExitFailed;
    nlohmann::ordered_json json = {{"name", spec.name}, {"checkpoint", checkpoint}, {"prompt", prompt_}};
    if (!ids_) json["text"] = text_;
    json["tokens"] = tokens_;
    return PrintJson(json);
  }

  bool begun() const { return !tokens_.empty() && !json_; }

 private:
  absl::Status Print(const std::string& text) {
    std::string shown = text;
    // A model may write control characters, which a terminal obeys.
    for (char& c : shown) {
      const bool control = (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
      if (terminal_ && control) c = '?';
    }
    return PrintData(shown) == kExitOk ? absl::OkStatus() : absl::UnavailableError("nobody reads the text");
  }

  const std::string prompt_;
  const bool json_, ids_, terminal_;
  std::string text_;
  std::vector<int64_t> tokens_;
};

}  // namespace

ExitCode RunGenerate(const GenerateOptions& options) {
  const auto spec = ReadRun(options);
  if (!spec.ok()) return Fail(kExitBadConfiguration, spec.status().message());
  const auto prompt = TokensOf(options.prompt, *spec);
  if (!prompt.ok()) return Fail(kExitUsage, prompt.status().message());
  const auto text = TextModelOf(spec->model);
  if (!text.ok())
    return Fail(kExitBadConfiguration,
                absl::StrCat("the model of ", spec->name, " ", text.status().message()));
  if (absl::Status fits = CheckPrompt(*prompt, *text); !fits.ok())
    return Fail(kExitBadConfiguration, fits.message());
  const auto checkpoint = CheckpointOf(options, *spec);
  if (!checkpoint.ok()) return Fail(kExitBadConfiguration, checkpoint.status().message());
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the worker must still be ended
  WorkerTask task;
  std::vector<std::string> arguments = options.device.Arguments();
  arguments.insert(arguments.end(), {"--checkpoint", AbsolutePath(*checkpoint), "--request",
                                     Request(options, *prompt, *text)});
  if (const absl::Status started = task.Start("--generate", *spec, arguments); !started.ok())
    return Fail(kExitFailed, started.message());
  Page page(options, ReadsTokenIds(*spec));
  bool unread = false;
  const absl::Status ended = task.Watch(
      [&](const Json& line) {
        if (!line.contains("token") || !line["token"].is_number_integer())
          return absl::InternalError("weft-worker wrote a line that is not a token");
        absl::Status added = page.Add(line["token"]);
        unread = !added.ok();
        return added;
      },
      [&] {
        if (const std::string device = task.TakeDevice(); !device.empty()) PrintMessage(device);
      });
  if (unread) return kExitFailed;  // said where it was noticed
  if (!ended.ok() && page.begun()) PrintData("\n");
  if (ended.code() == absl::StatusCode::kCancelled) return Fail(kExitInterrupted, ended.message());
  if (!ended.ok()) {
    task.PrintLastWords();
    PrintMessage(absl::StrCat("nothing more could be written: ", ended.message()));
    return task.code() == kExitBadConfiguration ? kExitBadConfiguration : kExitFailed;
  }
  return page.Finish(*spec, *checkpoint);
}

}  // namespace weft
