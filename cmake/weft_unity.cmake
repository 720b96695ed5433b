# Unity builds: the compiler reads several sources of a library as one, so that headers are read, and their inline functions
# instantiated, once for all of them (docs/measurements/build_time.md).
#
#   WEFT_UNITY=ON    from nothing it is faster; after a change of one source, its whole batch is compiled again
#   WEFT_UNITY=OFF   each source on its own: for daily work with the compiler cache, and for tools that read compile_commands.json
#
# So no two sources of a library may give one name in their anonymous namespaces to different things. A file of tests has a namespace
# of its own instead, named after it; those in weft::testing share one, as a library's sources do. CMake leaves out sources that have flags of their own (weft_exact_arithmetic).
#
#   weft_use_unity(TARGET)   for weft_library, weft_binary and weft_test

option(WEFT_UNITY "Compile the sources of a library in batches" OFF)
set(WEFT_UNITY_BATCH 16)

# A class that one source alone declares and defines may have members of types from its anonymous namespace, and GCC cannot know here
# that it is one source.
if(WEFT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(APPEND CMAKE_CXX_FLAGS " -Wno-subobject-linkage")
  string(STRIP "${CMAKE_CXX_FLAGS}" CMAKE_CXX_FLAGS)
endif()

function(weft_use_unity target)
  if(WEFT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${WEFT_UNITY_BATCH})
  endif()
endfunction()
