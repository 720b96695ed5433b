// Says which plug-ins this process may load for exported models (torch/plugins.h).
//
// A process that a user starts for a run of their own allows those that the run names. A worker that serves a
// coordinator allows none but those of its configuration, because anyone who may submit names them in a run.
// Process-wide, as loading is. Threads: AllowPlugins before any rank is made; the rest any.
#ifndef WEFT_WORKER_SHELL_COMPUTE_PLUGIN_PERMISSION_H_
#define WEFT_WORKER_SHELL_COMPUTE_PLUGIN_PERMISSION_H_

#include <set>
#include <string>

namespace weft {

struct PluginPermission {
  bool any = false;
  std::set<std::string> hashes;    // SHA-256 of files, 64 hexadecimal digits
  std::string python = "python3";  // program whose interpreter runs those that are Python
};

// Sets what may be loaded. Before it is called, no library is allowed.
void AllowPlugins(PluginPermission permission);
bool MayLoadPlugin(const std::string& sha256);
std::string PythonOfPlugins();

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_PLUGIN_PERMISSION_H_
