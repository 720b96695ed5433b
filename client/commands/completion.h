// Writes scripts that let a shell complete the words of a command line: commands, flags and their values.
//
// The words come as a value, so that the script offers exactly what the program takes. Pure.
#ifndef WEFT_CLIENT_COMMANDS_COMPLETION_H_
#define WEFT_CLIENT_COMMANDS_COMPLETION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// The words that may stand at a place of the command line.
struct CompletedValue {
  enum class Kind : uint8_t {
    kNone,    // no value: the flag takes none
    kAny,     // any text, of which nothing could be listed
    kFile,    // a file, or a folder on the way to one
    kFolder,  // a folder
  };
  Kind kind = Kind::kNone;
  std::vector<std::string> choices = {};  // words that may stand there, beside files
};

struct CompletedFlag {
  std::vector<std::string> names;  // "--output", "-o"
  std::string help;                // one line
  CompletedValue value;
  bool repeats = false;
};

struct CompletedCommand {
  std::string name, help;
  std::vector<CompletedFlag> flags;
  CompletedValue argument;  // value of a word that is no flag
};

// Returns the script for `shell`, one of CompletionShells().
std::string CompletionScript(const std::string& shell, const std::vector<CompletedCommand>& commands,
                             const std::vector<CompletedFlag>& flags);

// Returns "bash", "zsh", "fish".
const std::vector<std::string>& CompletionShells();

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_COMPLETION_H_
