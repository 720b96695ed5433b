# Third-party packages as imported targets. Each is used by one adapter (see docs/architecture.md).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(muparser CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(SQLite3 3.37 REQUIRED)  # STRICT tables
find_path(WEFT_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # compiled in: its functions are inline
find_package(PkgConfig REQUIRED)
pkg_check_modules(cpp-httplib REQUIRED IMPORTED_TARGET cpp-httplib)  # with the macros that its library was compiled with
pkg_check_modules(libdeflate REQUIRED IMPORTED_TARGET libdeflate)  # checksums of checkpoints, large graphs of models

# AUTO: tests and benchmarks are there where GoogleTest and Google Benchmark are, which `make run` does not install.
set(WEFT_TESTS AUTO CACHE STRING "Tests and benchmarks: AUTO (where GoogleTest and Google Benchmark are), ON or OFF")
set_property(CACHE WEFT_TESTS PROPERTY STRINGS AUTO ON OFF)
set(WEFT_TESTS_FOUND OFF)
if(WEFT_TESTS STREQUAL "AUTO")
  find_package(GTest QUIET)
  find_package(benchmark QUIET)
elseif(WEFT_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
if(WEFT_TESTS AND GTest_FOUND AND benchmark_FOUND)
  set(WEFT_TESTS_FOUND ON)
else()
  message(STATUS "Tests and benchmarks: left out")
endif()

set(WEFT_DEPS ${CMAKE_SOURCE_DIR}/build/deps CACHE PATH "Folder that deploy/setup.sh filled with LibTorch and UCX")
if(NOT EXISTS ${WEFT_DEPS}/.installed)
  message(FATAL_ERROR "LibTorch and UCX are not in ${WEFT_DEPS}; run deploy/setup.sh first")
endif()

# The CPU half of LibTorch only: linking `libtorch` would pull in libtorch_cuda and 350 MB of resident memory.
add_library(weft_third_torch INTERFACE)
target_include_directories(weft_third_torch SYSTEM INTERFACE
  ${WEFT_DEPS}/torch/include ${WEFT_DEPS}/torch/include/torch/csrc/api/include)
file(GLOB WEFT_CUDA_RUNTIME ${WEFT_DEPS}/cuda/cu13/lib/libcudart.so.* ${WEFT_DEPS}/cuda/*/lib/libcudart.so.*)
list(GET WEFT_CUDA_RUNTIME 0 WEFT_CUDA_RUNTIME)
get_filename_component(WEFT_CUDA_LIB ${WEFT_CUDA_RUNTIME} DIRECTORY)
target_link_directories(weft_third_torch INTERFACE ${WEFT_DEPS}/torch/lib)
target_link_libraries(weft_third_torch INTERFACE torch_cpu c10)
target_link_options(weft_third_torch INTERFACE
  -Wl,-rpath,${WEFT_DEPS}/torch/lib -Wl,-rpath-link,${WEFT_DEPS}/torch/lib -Wl,-rpath-link,${WEFT_CUDA_LIB}
  -Wl,--disable-new-dtags -Wl,-rpath,${WEFT_CUDA_LIB})

# The wheel's UCX has no RDMA; the machine's may (docs/guide/transfers.md).
set(WEFT_UCX wheel CACHE STRING "UCX to build with: wheel (from deploy/setup.sh) or system (find_package)")
set_property(CACHE WEFT_UCX PROPERTY STRINGS wheel system)
add_library(weft_third_ucx INTERFACE)
if(WEFT_UCX STREQUAL "system")
  find_package(ucx 1.16 CONFIG REQUIRED)
  target_link_libraries(weft_third_ucx INTERFACE ucx::ucp ucx::uct ucx::ucs)
elseif(WEFT_UCX STREQUAL "wheel")
  target_include_directories(weft_third_ucx SYSTEM INTERFACE ${WEFT_DEPS}/ucx/include)
  target_link_directories(weft_third_ucx INTERFACE ${WEFT_DEPS}/ucx/lib)
  target_link_libraries(weft_third_ucx INTERFACE ucp uct ucs ucm)
  target_link_options(weft_third_ucx INTERFACE -Wl,-rpath,${WEFT_DEPS}/ucx/lib)
else()
  message(FATAL_ERROR "WEFT_UCX is \"${WEFT_UCX}\"; it is wheel or system")
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WEFT_CCACHE})
endif()
