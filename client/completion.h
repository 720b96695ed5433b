// Scripts that let a shell complete the words of a command line: commands, flags and their values.
//
// What there is to complete comes as a value, so that the script says what the program takes and nothing
// else. Pure.
#ifndef WEFT_CLIENT_COMPLETION_H_
#define WEFT_CLIENT_COMPLETION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// What may stand at a place of the command line.
struct CompletedValue {
  enum class Kind : uint8_t {
    kNone,    // of a flag: it takes no value
    kAny,     // nothing that could be listed
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
  CompletedValue argument;  // of what is no flag
};

// For `shell`, one of CompletionShells().
std::string CompletionScript(const std::string& shell, const std::vector<CompletedCommand>& commands,
                             const std::vector<CompletedFlag>& flags);

// "bash", "zsh", "fish".
const std::vector<std::string>& CompletionShells();

}  // namespace weft

#endif  // WEFT_CLIENT_COMPLETION_H_
