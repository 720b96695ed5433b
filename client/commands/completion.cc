#include "client/commands/completion.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace weft {
namespace {

using Kind = CompletedValue::Kind;

bool TakesValue(const CompletedFlag& flag) { return flag.value.kind != Kind::kNone; }

std::string NamesOf(const std::vector<CompletedFlag>& flags) {
  std::vector<std::string> names;
  for (const CompletedFlag& flag : flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return absl::StrJoin(names, " ");
}

// Returns a bash command that fills COMPREPLY with the words that may stand there.
std::string BashReply(const CompletedValue& value) {
  std::vector<std::string> ways;
  if (!value.choices.empty()) ways.push_back(absl::StrCat("-W '", absl::StrJoin(value.choices, " "), "'"));
  // With `compopt` a folder gets its slash, and a name with spaces its quotes.
  if (value.kind == Kind::kFile) ways.push_back("-f");
  if (value.kind == Kind::kFolder) ways.push_back("-d");
  if (ways.empty()) return "return";
  const std::string files = ways.back()[1] == 'W' ? "" : "compopt -o filenames 2>/dev/null; ";
  return absl::StrCat(files, "mapfile -t COMPREPLY < <(compgen ", absl::StrJoin(ways, " "),
                      " -- \"$cur\"); return");
}

std::string Bash(const std::vector<CompletedCommand>& commands, const std::vector<CompletedFlag>& flags) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CompletedCommand& command : commands) names.push_back(command.name);
  std::string out = absl::StrCat(
      "# Completes weft's commands and flags in bash. In ~/.bashrc:  source <(weft completion bash)\n"
      "_weft() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i\n"
      "  # --flag=value comes as three words.\n"
      "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n");
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&out, "    ", command.name, ")\n      case $prev in\n");
    for (const CompletedFlag& flag : command.flags) {
      if (!TakesValue(flag)) continue;
      absl::StrAppend(&out, "        ", absl::StrJoin(flag.names, "|"), ") ", BashReply(flag.value), " ;;\n");
    }
    absl::StrAppend(
        &out, "      esac\n      if [[ $cur == -* ]]; then\n        mapfile -t COMPREPLY < <(compgen -W '",
        NamesOf(command.flags), "' -- \"$cur\"); return\n      fi\n      ", BashReply(command.argument),
        " ;;\n");
  }
  return absl::StrCat(out, "    '') mapfile -t COMPREPLY < <(compgen -W '", absl::StrJoin(names, " "), " ",
                      NamesOf(flags), "' -- \"$cur\") ;;\n  esac\n}\ncomplete -F _weft weft\n");
}

// Quotes a text for zsh's _arguments: its own marks are escaped.
std::string ForZsh(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

// Returns the text behind the second colon of a specification.
std::string ZshAction(const CompletedValue& value) {
  const std::string words =
      value.choices.empty() ? "" : absl::StrCat("(", absl::StrJoin(value.choices, " "), ")");
  const std::string files = value.kind == Kind::kFile     ? "_files"
                            : value.kind == Kind::kFolder ? "_files -/"
                                                          : "";
  if (words.empty() || files.empty())
    return absl::StrCat(words, files, words.empty() && files.empty() ? " " : "");
  return absl::StrCat("_alternative \"words:word:", words, "\" \"files:file:", files, "\"");
}

std::string Zsh(const std::vector<CompletedCommand>& commands, const std::vector<CompletedFlag>& flags) {
  const auto arguments = [](const std::vector<CompletedFlag>& of, const std::string& margin) {
    std::string out;
    for (const CompletedFlag& flag : of) {
      for (const std::string& name : flag.names) {
        absl::StrAppend(&out, " \\\n", margin, "'", flag.repeats ? "*" : "", name, "[", ForZsh(flag.help),
                        "]", TakesValue(flag) ? absl::StrCat(":value:", ZshAction(flag.value)) : "", "'");
      }
    }
    return out;
  };
  std::string out =
      "#compdef weft\n"
      "# Completes weft's commands and flags in zsh. In ~/.zshrc, after compinit:  source <(weft completion "
      "zsh)\n"
      "_weft() {\n"
      "  local context state line\n"
      "  typeset -A opt_args\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CompletedCommand& command : commands)
    absl::StrAppend(&out, "    '", command.name, ":", absl::StrReplaceAll(command.help, {{"'", "'\\''"}}),
                    "'\n");
  absl::StrAppend(&out, "  )\n  _arguments -C", arguments(flags, "    "),
                  " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n"
                  "  case $state in\n"
                  "    command) _describe command commands ;;\n"
                  "    argument)\n"
                  "      case $words[1] in\n");
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&out, "        ", command.name, ")\n          _arguments",
                    arguments(command.flags, "            "),
                    " \\\n            '*:argument:", ZshAction(command.argument), "' ;;\n");
  }
  return absl::StrCat(out,
                      "      esac ;;\n  esac\n}\n"
                      "compdef _weft weft\n");
}

std::string ForFish(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}});
}

std::string Fish(const std::vector<CompletedCommand>& commands, const std::vector<CompletedFlag>& flags) {
  std::string out =
      "# Completes weft's commands and flags in fish:  weft completion fish > "
      "~/.config/fish/completions/weft.fish\n"
      "complete -c weft -f\n";
  const auto value = [](const CompletedValue& v) {
    std::string words;
    if (v.kind != Kind::kNone)
      absl::StrAppend(&words, v.kind == Kind::kFile || v.kind == Kind::kFolder ? " -r" : " -x");
    if (v.kind == Kind::kFile) absl::StrAppend(&words, " -F");
    if (!v.choices.empty()) {
      absl::StrAppend(&words, " -a '", absl::StrJoin(v.choices, " "), "'");
    } else if (v.kind == Kind::kFolder) {
      absl::StrAppend(&words, " -a '(__fish_complete_directories)'");
    }
    return words;
  };
  const auto add = [&](const std::string& where, const std::vector<CompletedFlag>& of) {
    for (const CompletedFlag& flag : of) {
      absl::StrAppend(&out, "complete -c weft -n '", where, "'");
      for (const std::string& name : flag.names) {
        absl::StrAppend(&out, absl::StartsWith(name, "--") ? " -l " : " -s ",
                        name.substr(absl::StartsWith(name, "--") ? 2 : 1));
      }
      absl::StrAppend(&out, value(flag.value), " -d '", ForFish(flag.help), "'\n");
    }
  };
  add("__fish_use_subcommand", flags);
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&out, "complete -c weft -n '__fish_use_subcommand' -a ", command.name, " -d '",
                    ForFish(command.help), "'\n");
  }
  for (const CompletedCommand& command : commands) {
    const std::string where = absl::StrCat("__fish_seen_subcommand_from ", command.name);
    add(where, command.flags);
    if (!command.argument.choices.empty()) {
      absl::StrAppend(&out, "complete -c weft -n '", where, "' -a '",
                      absl::StrJoin(command.argument.choices, " "), "'\n");
    }
    if (command.argument.kind == Kind::kFile || command.argument.kind == Kind::kFolder) {
      absl::StrAppend(&out, "complete -c weft -n '", where, "' -F\n");
    }
  }
  return out;
}

}  // namespace

const std::vector<std::string>& CompletionShells() {
  static const auto* const shells = new std::vector<std::string>{"bash", "zsh", "fish"};
  return *shells;
}

std::string CompletionScript(const std::string& shell, const std::vector<CompletedCommand>& commands,
                             const std::vector<CompletedFlag>& flags) {
  if (shell == "zsh") return Zsh(commands, flags);
  if (shell == "fish") return Fish(commands, flags);
  return Bash(commands, flags);
}

}  // namespace weft
