# Makes the Debian package weft-dev of what the component `development` installs (deploy/deb.sh calls cpack with it). The environment
# says what differs: STAGE, the tree; VERSION; OUT, the folder. The library takes gRPC and the others from Debian's packages, which
# dpkg-shlibdeps names.
set(CPACK_PACKAGE_NAME weft-dev)
set(CPACK_PACKAGE_VERSION $ENV{VERSION})
set(CPACK_PACKAGE_VENDOR "The Weft authors")
set(CPACK_PACKAGE_CONTACT "The Weft authors <weft@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Clients of Weft: C++ library, protos and examples")
set(CPACK_PACKAGE_DESCRIPTION
"Submits trainings to a coordinator of Weft, watches and cancels them, from C++ or, with the protos, from any language
that has gRPC. Machines that run such C++ programs need this package too, for the library.")
set(CPACK_PACKAGE_DIRECTORY $ENV{OUT})
set(CPACK_PACKAGE_FILE_NAME weft-dev_$ENV{VERSION}_amd64)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_INSTALLED_DIRECTORIES "$ENV{STAGE};/")
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libabsl-dev")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "protobuf-compiler-grpc, python3-grpcio")
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_LIST_DIR}/triggers")
