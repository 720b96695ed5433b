# The GPU half of the build: libweft_cuda, which weft-worker loads where it is asked for a GPU. Nothing else needs CUDA, and a GPU
# is needed neither to build nor to pass the tests.
#
#   WEFT_CUDA=AUTO   the library is built where there is a CUDA compiler that fits LibTorch; configure says so, or why not
#   WEFT_CUDA=ON     likewise, but a machine where it cannot be built is an error
#   WEFT_CUDA=OFF    it is not built
#
# After this WEFT_CUDA_FOUND says whether it is built, and then there are the language CUDA and the target
#   weft_third_cuda   the CUDA half of LibTorch and the CUDA runtime, for sources of the device library alone
#
#   weft_device_library(NAME [FOLDER DIR] [EXPORTS SYMBOL ..] SRCS .. DEPS ..)
#     a device of its own kind as a shared library libNAME.so that weft-worker loads (worker/shell/compute/device_backend.h), in
#     lib/ beside bin/. It exports its entry and nothing else, whatever it is made of.
#     The target weft_devices builds all that lie there.
#   weft_exact_arithmetic(FILE ..)   sources, C++ or CUDA, whose results must not depend on contraction to fused multiply-adds

set(WEFT_CUDA AUTO CACHE STRING "Build the GPU library libweft_cuda.so: AUTO (where nvcc is), ON or OFF")
set_property(CACHE WEFT_CUDA PROPERTY STRINGS AUTO ON OFF)
# Each one costs compile time and size. A later GPU of the same major number runs the code of an earlier one, and the last of the
# list also carries PTX, from which the driver makes code for what comes after.
set(WEFT_CUDA_ARCHITECTURES "80-real;90-real;100" CACHE STRING "GPU architectures of libweft_cuda.so, as CMAKE_CUDA_ARCHITECTURES")

# The toolkit's folder, or why libweft_cuda cannot be built here.
function(weft_find_cuda out_root out_reason)
  set(${out_root} "" PARENT_SCOPE)
  set(${out_reason} "" PARENT_SCOPE)
  get_filename_component(named "$ENV{CUDACXX}" DIRECTORY)
  find_program(WEFT_NVCC nvcc HINTS ${named} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin DOC "The CUDA compiler")
  mark_as_advanced(WEFT_NVCC)
  if(NOT WEFT_NVCC)
    set(${out_reason} "no CUDA compiler (nvcc) was found in PATH, $CUDA_HOME or /usr/local/cuda" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${WEFT_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release (([0-9]+)\\.[0-9]+)")
    set(${out_reason} "${WEFT_NVCC} --version does not say its version" PARENT_SCOPE)
    return()
  endif()
  if(NOT CMAKE_MATCH_2 EQUAL WEFT_TORCH_CUDA)
    set(${out_reason} "${WEFT_NVCC} is of CUDA ${CMAKE_MATCH_1}, and LibTorch here is built for CUDA ${WEFT_TORCH_CUDA}" PARENT_SCOPE)
    return()
  endif()
  if(NOT EXISTS ${WEFT_DEPS}/torch/lib/libtorch_cuda.so)
    set(${out_reason} "${WEFT_DEPS}/torch/lib has no libtorch_cuda.so" PARENT_SCOPE)
    return()
  endif()
  # The nvcc in PATH may be a script in a folder of its own; the compiler itself knows where its toolkit is.
  execute_process(COMMAND ${WEFT_NVCC} --dryrun none.cu OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX MATCH "TOP=([^\n]+)" top "${text}")
  get_filename_component(root "${CMAKE_MATCH_1}" REALPATH)
  if(NOT EXISTS ${root}/include/cublas_v2.h)
    set(${out_reason} "the CUDA toolkit of ${WEFT_NVCC} lacks the headers of its libraries (${root}/include/cublas_v2.h)" PARENT_SCOPE)
    return()
  endif()
  set(${out_root} ${root} PARENT_SCOPE)
endfunction()

set(WEFT_TORCH_CUDA 13)  # the major number of the CUDA runtime that LibTorch's wheel is built for
set(WEFT_CUDA_FOUND OFF)
set(weft_cuda_reason "WEFT_CUDA is OFF")
if(NOT WEFT_CUDA STREQUAL "OFF")
  if(WEFT_SANITIZE AND WEFT_CUDA STREQUAL "AUTO")
    set(weft_cuda_reason "this build is a sanitizer's (WEFT_CUDA=ON builds it all the same)")
  else()
    weft_find_cuda(WEFT_CUDA_ROOT weft_cuda_reason)
    if(WEFT_CUDA_ROOT)
      set(WEFT_CUDA_FOUND ON)
    elseif(NOT WEFT_CUDA STREQUAL "AUTO")
      message(FATAL_ERROR "WEFT_CUDA=${WEFT_CUDA}, but the GPU library cannot be built: ${weft_cuda_reason}")
    endif()
  endif()
endif()

if(WEFT_CUDA_FOUND)
  message(STATUS "GPU library: libweft_cuda.so is built, with ${WEFT_NVCC}")
  set(CMAKE_CUDA_COMPILER ${WEFT_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${WEFT_CUDA_ARCHITECTURES})
  # CMake 3.25 knows no C++20 of this compiler: headers that .cu files include keep to C++17.
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # there is one CUDA runtime in the process, LibTorch's
  enable_language(CUDA)
  if(WEFT_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${WEFT_CCACHE})
  endif()

  # LibTorch's CUDA half needs cuDNN, cuBLAS and more when it is loaded, and nothing of them to link against. It registers its
  # kernels when it is loaded, so it is needed even where no symbol of it is used.
  add_library(weft_third_cuda INTERFACE)
  target_include_directories(weft_third_cuda SYSTEM INTERFACE ${WEFT_CUDA_ROOT}/include)
  target_link_directories(weft_third_cuda INTERFACE ${WEFT_CUDA_LIB})
  target_link_libraries(weft_third_cuda INTERFACE weft_third_torch -Wl,--push-state,--no-as-needed torch_cuda c10_cuda
    -Wl,--pop-state ${WEFT_CUDA_RUNTIME})
  target_link_options(weft_third_cuda INTERFACE -Wl,--allow-shlib-undefined)
  # Search paths of the libraries that it needs then: those that setup.sh fetched, and the toolkit's.
  foreach(part cudnn nccl cusparselt nvshmem)
    target_link_options(weft_third_cuda INTERFACE -Wl,-rpath,${WEFT_DEPS}/cuda/${part}/lib)
  endforeach()
  target_link_options(weft_third_cuda INTERFACE -Wl,-rpath,${WEFT_CUDA_ROOT}/lib64)
else()
  message(STATUS "GPU library: not built, because ${weft_cuda_reason}")
endif()

add_custom_target(weft_devices)
function(weft_device_library name)
  cmake_parse_arguments(A "" "FOLDER" "SRCS;DEPS;EXPORTS" ${ARGN})
  add_library(${name} SHARED ${A_SRCS})
  if(NOT A_FOLDER)
    set(A_FOLDER ${CMAKE_BINARY_DIR}/lib)
    add_dependencies(weft_devices ${name})
  endif()
  target_link_libraries(${name} PRIVATE weft_flags weft_device_version ${A_DEPS})
  # The static libraries that it is made of would export what they have, and the worker has copies of its own.
  set(symbols weft_device_backend ${A_EXPORTS})
  list(JOIN symbols "; " symbols)
  set(exports ${CMAKE_CURRENT_BINARY_DIR}/${name}.exports)
  file(CONFIGURE OUTPUT ${exports} CONTENT "{ global: @symbols@; local: *; };\n" @ONLY)
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports})
  if(NOT WEFT_SANITIZE)
    target_link_options(${name} PRIVATE -Wl,-z,defs)  # what is missing is said here, not on the machine with the GPU
  endif()
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${A_FOLDER} LINKER_LANGUAGE CXX
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LINK_DEPENDS ${exports})
endfunction()

function(weft_exact_arithmetic)
  weft_without_precompiled(${ARGN})
  foreach(file ${ARGN})
    if(file MATCHES "\\.cu$")
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -fmad=false;-prec-div=true;-prec-sqrt=true;-ftz=false)
    else()
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
    endif()
  endforeach()
endfunction()
