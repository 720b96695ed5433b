# Makes the Debian package weft of an installed tree (deploy/deb.sh calls cpack with it). The environment says what differs from package to
# package, because cpack sets its -D variables behind this file: STAGE, the tree; VERSION; GLIBC, the least version; OUT, the folder.
# The tree brings the libraries that it needs but glibc's, so the package depends on little.
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VERSION $ENV{VERSION})
set(CPACK_PACKAGE_VENDOR "The Weft authors")
set(CPACK_PACKAGE_CONTACT "The Weft authors <weft@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed training of neural networks")
set(CPACK_PACKAGE_DESCRIPTION
"Trains neural networks on many ranks with data, sharded, pipeline, looped, zero-bubble, cyclic or asynchronous
parallelism: the scheme is a value in the run file. The package has the command weft, the daemons with their units
for systemd, rules for Prometheus and dashboards for Grafana. Workers need LibTorch, which is not in Debian at the
version that they need: pip install torch, or a folder that WEFT_TORCH names.")
set(CPACK_PACKAGE_DIRECTORY $ENV{OUT})
set(CPACK_PACKAGE_FILE_NAME weft_$ENV{VERSION}_amd64)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_INSTALLED_DIRECTORIES "$ENV{STAGE};/")
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= $ENV{GLIBC}), adduser | systemd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${CMAKE_CURRENT_LIST_DIR}/postinst;${CMAKE_CURRENT_LIST_DIR}/prerm;${CMAKE_CURRENT_LIST_DIR}/postrm;${CMAKE_CURRENT_LIST_DIR}/conffiles")
