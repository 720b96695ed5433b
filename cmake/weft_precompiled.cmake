# Third-party headers, precompiled: most of what the compiler reads is theirs (docs/measurements/build_time.md). A source still
# includes what it uses: builds with Clang or ThreadSanitizer precompile nothing, and fail where an include is missing. (Users of protobuf
# undefine a macro of ThreadSanitizer, and the compiler takes no headers that were precompiled with it.)
#
#   weft_precompiled(NAME HEADERS .. [DEPS ..] [OPTIMIZATION flag])   precompiles the headers once; DEPS say where they are. GCC takes them
#                                                 only for sources with the same flag: weft_use_precompiled notes it in the
#                                                 target's WEFT_OPTIMIZATION, which weft_test applies
#   weft_use_precompiled(TARGET NAME)             compiles the target's sources with them
#   weft_without_precompiled(FILE ..)             compiles these sources without, because they have flags of their own
#
# weft_library and weft_test choose by themselves (cmake/weft_targets.cmake); a target with heavier headers says so. The
# precompiled headers of pure libraries contain no header that those must not include.

set(WEFT_PRECOMPILE ON)
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR WEFT_SANITIZE MATCHES "thread")
  set(WEFT_PRECOMPILE OFF)
endif()
if(WEFT_PRECOMPILE AND WEFT_CCACHE)
  # Without these ccache stores nothing that was compiled with precompiled headers. No source here uses __TIME__ or defines a
  # macro for a header that follows.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_INODECACHE=1 ${WEFT_CCACHE})
endif()

function(weft_precompiled name)
  cmake_parse_arguments(A "" "OPTIMIZATION" "HEADERS;DEPS" ${ARGN})
  if(NOT WEFT_PRECOMPILE)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Empty: the target is there for its precompiled headers.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE weft_flags ${A_DEPS})
  list(TRANSFORM A_HEADERS REPLACE "(.+)" "<\\1>")
  target_precompile_headers(${name} PRIVATE ${A_HEADERS})
  target_compile_options(${name} PRIVATE ${A_OPTIMIZATION})
  set_target_properties(${name} PROPERTIES WEFT_OPTIMIZATION "${A_OPTIMIZATION}")
  if(WEFT_CCACHE)
    set_target_properties(${name} PROPERTIES
      CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/precompile_header.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  if(NOT name STREQUAL "weft_precompiled_pure")
    target_compile_options(${name} PRIVATE -pthread)
  endif()
endfunction()

function(weft_use_precompiled target name)
  if(NOT WEFT_PRECOMPILE)
    return()
  endif()
  get_target_property(optimization ${name} WEFT_OPTIMIZATION)
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${name} WEFT_OPTIMIZATION "${optimization}")
  add_dependencies(${target} ${name})
  # gRPC's users are compiled with -pthread, and the compiler takes no headers that were precompiled without.
  if(NOT name STREQUAL "weft_precompiled_pure")
    target_compile_options(${target} PRIVATE -pthread)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # The compiler takes headers that were precompiled with -fPIC, as those for libraries are, for no code with -fPIE.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

function(weft_without_precompiled)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# Not nlohmann/json.hpp, whose inline functions are instantiated anew in every source that sees them: only the libraries whose
# sources nearly all use JSON have it.
set(WEFT_PURE_HEADERS algorithm array cmath cstdint cstdio cstdlib cstring deque functional limits map memory optional set string
  tuple utility variant vector
  absl/container/flat_hash_map.h absl/container/flat_hash_set.h absl/status/status.h absl/status/statusor.h absl/strings/match.h
  absl/strings/numbers.h absl/strings/str_cat.h absl/strings/str_format.h absl/strings/str_join.h absl/strings/str_split.h
  absl/strings/string_view.h)
set(WEFT_SHELL_HEADERS ${WEFT_PURE_HEADERS} atomic chrono condition_variable filesystem fstream mutex sstream thread)
set(WEFT_TORCH_HEADERS ${WEFT_SHELL_HEADERS} ATen/Context.h ATen/TensorOperators.h ATen/core/Tensor.h ATen/core/grad_mode.h
  ATen/ops/empty.h ATen/ops/full.h ATen/ops/linear.h ATen/ops/zeros.h c10/util/Exception.h torch/csrc/autograd/autograd.h
  torch/csrc/autograd/custom_function.h torch/csrc/autograd/engine.h)
set(weft_deps absl::status absl::statusor absl::strings absl::str_format absl::flat_hash_map)

weft_precompiled(weft_precompiled_pure HEADERS ${WEFT_PURE_HEADERS} DEPS ${weft_deps})
weft_precompiled(weft_precompiled_shell HEADERS ${WEFT_SHELL_HEADERS} DEPS ${weft_deps})
weft_precompiled(weft_precompiled_json HEADERS ${WEFT_PURE_HEADERS} nlohmann/json.hpp DEPS ${weft_deps} nlohmann_json::nlohmann_json)
weft_precompiled(weft_precompiled_grpc HEADERS ${WEFT_SHELL_HEADERS} grpcpp/alarm.h grpcpp/grpcpp.h weft/v1/runs.grpc.pb.h
  weft/v1/session.grpc.pb.h DEPS weft_grpc ${weft_deps})
weft_precompiled(weft_precompiled_torch HEADERS ${WEFT_TORCH_HEADERS} DEPS weft_third_torch ${weft_deps})
if(WEFT_TESTS_FOUND)
  set(weft_test_headers ${WEFT_SHELL_HEADERS} random gmock/gmock.h gtest/gtest.h)
  set(weft_test_deps GTest::gmock GTest::gtest ${weft_deps})
  weft_precompiled(weft_precompiled_test HEADERS ${weft_test_headers} DEPS ${weft_test_deps})
  # Sources of tests that leave the work to the libraries or to the programs compile in half the time without optimization.
  if(NOT WEFT_SANITIZE)
    set(unoptimized OPTIMIZATION -O0)
  endif()
  weft_precompiled(weft_precompiled_unit_test HEADERS ${weft_test_headers} DEPS ${weft_test_deps} ${unoptimized})
  weft_precompiled(weft_precompiled_process_test HEADERS ${weft_test_headers} nlohmann/json.hpp
    DEPS ${weft_test_deps} nlohmann_json::nlohmann_json ${unoptimized})
endif()
