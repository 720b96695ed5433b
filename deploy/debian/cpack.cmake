# Makes the Debian package of an installed tree: cpack -G DEB --config deploy/debian/cpack.cmake -D STAGE=.. -D VERSION=.. -D OUT=..
# (`make deb` calls it). The tree brings the libraries that it needs but glibc's, so the package depends on little.
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VERSION ${VERSION})
set(CPACK_PACKAGE_VENDOR "The Weft authors")
set(CPACK_PACKAGE_CONTACT "The Weft authors <weft@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed training of neural networks")
set(CPACK_PACKAGE_DESCRIPTION
"Trains neural networks on many ranks with data, sharded, pipeline, looped, zero-bubble, cyclic or asynchronous
parallelism: the scheme is a value in the run file. The package has the command weft, the daemons with their units
for systemd, rules for Prometheus and dashboards for Grafana. Workers need LibTorch, which is not in Debian at the
version that they need: pip install torch, or a folder that WEFT_TORCH names.")
set(CPACK_PACKAGE_DIRECTORY ${OUT})
set(CPACK_PACKAGE_FILE_NAME weft_${VERSION}_amd64)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_INSTALLED_DIRECTORIES "${STAGE};/")
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${GLIBC}), adduser | systemd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${CMAKE_CURRENT_LIST_DIR}/postinst;${CMAKE_CURRENT_LIST_DIR}/prerm;${CMAKE_CURRENT_LIST_DIR}/postrm;${CMAKE_CURRENT_LIST_DIR}/conffiles")
