// Makes a path independent of the folder in which a command was started.
#ifndef WEFT_CLIENT_FILES_ABSOLUTE_PATH_H_
#define WEFT_CLIENT_FILES_ABSOLUTE_PATH_H_

#include <filesystem>
#include <string>

namespace weft {

// Returns the path from the root, without "." and "..".
inline std::string AbsolutePath(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_ABSOLUTE_PATH_H_
