#include "worker/shell/torch/python_interpreter.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdio>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

// Prints the program, its library and the version of its PyTorch as the last line, with tabs between; "" for
// what it does not have.
constexpr char kDescribe[] = R"(
import importlib.metadata, os, sys, sysconfig
variable = sysconfig.get_config_var
version = f"libpython{variable('py_version_short')}{getattr(sys, 'abiflags', '')}.so"
folders = [variable("LIBDIR"), os.path.join(sys.base_prefix, "lib"), variable("LIBPL")]
folders += [os.path.join("/usr/lib", variable("MULTIARCH") or "")]
names = [variable("INSTSONAME") or "", version + ".1.0", version]
paths = [os.path.join(f, n) for f in folders if f for n in names if ".so" in n]
try:
    torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    torch = ""
print("", sys.executable, next(filter(os.path.isfile, paths), ""), torch, sep="\t")
)";

// Runs `weft_source`, of the file `weft_file`, and leaves why it failed in `weft_failure`, "" if it did not.
// A kernel of Triton is compiled from its text, which is looked up by the file's name.
constexpr char kRun[] = R"(
def _weft_run(source, file):
    import linecache, sys, traceback, types
    name = "weft_plugin_" + "".join(c if c.isalnum() else "_" for c in file)
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    try:
        text = source.decode()
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), module.__dict__)
        return ""
    except BaseException as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        place = f", line {lines[-1]}" if lines else ""
        return " ".join(f"{type(error).__name__}: {error}{place}".split())
weft_failure = _weft_run(weft_source, weft_file)
)";

struct PythonFacts {
  std::string program, library, torch;
};

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Asks the program. Its own words are part of the failure.
absl::StatusOr<PythonFacts> FactsOf(const std::string& python) {
  FILE* const out = popen(absl::StrCat(Quoted(python), " -c ", Quoted(kDescribe), " 2>&1").c_str(), "re");
  if (out == nullptr) return absl::ResourceExhaustedError("no process can be started");
  std::string said;
  char part[512];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, out)) > 0;) said.append(part, n);
  const int status = pclose(out);
  const absl::string_view text = absl::StripSuffix(said, "\n");
  const std::string last(text.substr(text.rfind('\n') + 1));
  const std::vector<std::string> facts = absl::StrSplit(last, '\t');
  if (status == 0 && facts.size() == 4) return PythonFacts{facts[1], facts[2], facts[3]};
  return absl::FailedPreconditionError(
      absl::StrCat("cannot run: ", python, ": ", last, "; name another one in WEFT_PYTHON"));
}

// Refuses a Python whose PyTorch cannot share this process's LibTorch.
absl::Status CheckFacts(const PythonFacts& facts) {
  const std::string version = facts.torch.substr(0, facts.torch.find('+'));
  if (version != TORCH_VERSION) {
    return absl::FailedPreconditionError(
        absl::StrCat("needs a Python with PyTorch ", TORCH_VERSION, ", and ", facts.program, " has ",
                     version.empty() ? "none" : version, "; name another one in WEFT_PYTHON"));
  }
  if (!facts.library.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "needs the library of ", facts.program,
      ", libpython3.so; install it (Debian: libpython3-dev), or name another Python in WEFT_PYTHON"));
}

// The part of Python's C interface that is needed. It is found by name, so that nothing is built against one
// version of Python.
class Interpreter {
 public:
  // Loads the library and begins the interpreter, once. The first Python is kept.
  absl::Status Begin(const std::string& python) {
    if (begun_) return absl::OkStatus();
    const absl::StatusOr<PythonFacts> facts = FactsOf(python);
    if (!facts.ok()) return facts.status();
    if (absl::Status s = CheckFacts(*facts); !s.ok()) return s;
    // Global: the modules of Python that are libraries find it there.
    library_ = dlopen(facts->library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library_ == nullptr || !FindAll())
      return absl::FailedPreconditionError(absl::StrCat(facts->library, " cannot be used: ", dlerror()));
    program_.assign(facts->program.begin(), facts->program.end());
    set_program_(program_.c_str());  // by which Python finds the packages of a virtual environment
    initialize_(/*signals=*/0);
    save_thread_();  // other threads may have the lock
    begun_ = true;
    return absl::OkStatus();
  }

  // Returns why the source failed; "" if it did not.
  std::string Run(const std::string& file, const std::string& source) {
    const int state = ensure_();
    void* const globals = module_dict_(add_module_("__main__"));
    Set(globals, "weft_source", bytes_(source.data(), static_cast<ptrdiff_t>(source.size())));
    Set(globals, "weft_file", text_(file.data(), static_cast<ptrdiff_t>(file.size())));
    std::string failure = "Python does not run it";
    if (run_(kRun) == 0) {
      const char* const said = utf8_(get_item_(globals, "weft_failure"));
      failure = said != nullptr ? said : failure;
    }
    release_(state);
    return failure;
  }

 private:
  bool FindAll() {
    return Find("Py_SetProgramName", &set_program_) && Find("Py_InitializeEx", &initialize_) &&
           Find("PyEval_SaveThread", &save_thread_) && Find("PyGILState_Ensure", &ensure_) &&
           Find("PyGILState_Release", &release_) && Find("PyImport_AddModule", &add_module_) &&
           Find("PyModule_GetDict", &module_dict_) && Find("PyDict_SetItemString", &set_item_) &&
           Find("PyDict_GetItemString", &get_item_) && Find("PyBytes_FromStringAndSize", &bytes_) &&
           Find("PyUnicode_FromStringAndSize", &text_) && Find("PyUnicode_AsUTF8", &utf8_) &&
           Find("PyRun_SimpleString", &run_) && Find("Py_DecRef", &drop_);
  }
  template <typename Function>
  bool Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }
  void Set(void* globals, const char* name, void* value) {
    set_item_(globals, name, value);
    drop_(value);
  }

  void* library_ = nullptr;
  bool begun_ = false;
  std::wstring program_;  // kept: Python does not copy it
  void (*set_program_)(const wchar_t*) = nullptr;
  void (*initialize_)(int) = nullptr;
  void* (*save_thread_)() = nullptr;
  int (*ensure_)() = nullptr;
  void (*release_)(int) = nullptr;
  void* (*add_module_)(const char*) = nullptr;
  void* (*module_dict_)(void*) = nullptr;
  int (*set_item_)(void*, const char*, void*) = nullptr;
  void* (*get_item_)(void*, const char*) = nullptr;
  void* (*bytes_)(const char*, ptrdiff_t) = nullptr;
  void* (*text_)(const char*, ptrdiff_t) = nullptr;
  const char* (*utf8_)(void*) = nullptr;
  int (*run_)(const char*) = nullptr;
  void (*drop_)(void*) = nullptr;
};

}  // namespace

absl::Status RunPythonSource(const std::string& python, const std::string& file, const std::string& source) {
  static auto* const interpreter = new Interpreter;
  if (absl::Status s = interpreter->Begin(python); !s.ok()) return s;
  const std::string failure = interpreter->Run(file, source);
  return failure.empty() ? absl::OkStatus() : absl::InvalidArgumentError(failure);
}

}  // namespace weft
