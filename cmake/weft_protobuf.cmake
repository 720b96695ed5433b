# weft_protobuf(NAME FILE [GRPC]) makes a library of the code that protoc generates into the build tree from
# proto/NAME/FILE.proto, where NAME is the present folder: weft_NAME_grpc, with stubs of gRPC, or else weft_NAME_proto.
# The target weft_NAME_sources only generates the code.
function(weft_protobuf name file)
  cmake_parse_arguments(A "GRPC" "" "" ${ARGN})
  set(out ${CMAKE_BINARY_DIR}/proto)
  set(made ${out}/${name}/${file})
  set(sources ${made}.pb.cc)
  set(headers ${made}.pb.h)
  set(library weft_${name}_proto)
  if(A_GRPC)
    list(APPEND sources ${made}.grpc.pb.cc)
    list(APPEND headers ${made}.grpc.pb.h)
    set(library weft_${name}_grpc)
    set(runtime gRPC::grpc++)
    set(stubs --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
  endif()
  add_custom_command(
    OUTPUT ${sources} ${headers}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
    COMMAND protobuf::protoc -I${CMAKE_SOURCE_DIR}/proto --cpp_out=${out} ${stubs} ${name}/${file}.proto
    DEPENDS ${file}.proto VERBATIM)
  add_custom_target(weft_${name}_sources DEPENDS ${sources})
  add_library(${library} STATIC ${sources})
  target_include_directories(${library} SYSTEM PUBLIC ${out})
  target_link_libraries(${library} PUBLIC protobuf::libprotobuf ${runtime})
  target_compile_options(${library} INTERFACE -U__SANITIZE_THREAD__)  # as weft_proto
  set_target_properties(${library} PROPERTIES CXX_CLANG_TIDY "")  # nobody's code to correct
endfunction()
