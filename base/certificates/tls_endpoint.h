// Serves both ends of TLS on sockets that do not block, for a loop that polls them: each side has a
// certificate of an authority that the other's folder of certificates trusts (certificate_folder.h).
//
// The folder is followed (certificate_watch.h): new connections use what it holds then. Names of hosts are
// not compared; the caller decides by the URIs in the peer's certificate. Threads: a connection is used by
// one thread at a time; Accept and Connect may be called from any. Failure of Start: as
// ReadCertificateFolder.
#ifndef WEFT_BASE_CERTIFICATES_TLS_ENDPOINT_H_
#define WEFT_BASE_CERTIFICATES_TLS_ENDPOINT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/certificates/certificate_watch.h"

namespace weft {

class TlsConnection {
 public:
  virtual ~TlsConnection() = default;

  // Read and Write do as recv and send: -1 with EAGAIN means later; the handshake is made on the way. Any
  // other -1, or 0 of Read, ends the connection. Written bytes may wait in memory: see Flush.
  virtual ssize_t Read(void* to, size_t size) = 0;
  virtual ssize_t Write(const void* from, size_t size) = 0;
  // Makes the handshake and moves no data: 1 when it is done, else -1 as above.
  virtual int Handshake() = 0;
  // Gives the socket what waits in memory: 1 when all of it is there, else -1 as above.
  virtual int Flush() = 0;
  // Returns true if bytes wait in memory until the socket can be written to; else an EAGAIN waits until it
  // can be read.
  virtual bool wants_write() const = 0;
  // Returns why the last -1 without EAGAIN came.
  virtual std::string problem() const = 0;

  // Returns the URIs in the peer's certificate, once the handshake is done.
  virtual std::vector<std::string> peer_uris() const = 0;
};

struct TlsOptions {
  // TLS 1.3 alone, which suffices between programs of one kind.
  bool newest_only = false;
  // The bytes that are asked of a socket at once. 0: what the next record needs.
  size_t read_ahead = 0;
  // The bytes after which a connection changes its key. AES-GCM may encrypt 2^24.5 full records (362 GiB)
  // with one key (RFC 8446, section 5.5), and OpenSSL does not count them.
  uint64_t key_bytes = uint64_t{64} << 30;
};

class TlsEndpoint {
 public:
  virtual ~TlsEndpoint() = default;

  static absl::StatusOr<std::unique_ptr<TlsEndpoint>> Start(const std::string& folder,
                                                            const TlsOptions& options,
                                                            CertificateWatch::Observer observer);

  // Each begins a connection on a socket that does not block, which stays the caller's: as its server, or as
  // its client.
  virtual std::unique_ptr<TlsConnection> Accept(int fd) = 0;
  virtual std::unique_ptr<TlsConnection> Connect(int fd) = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_TLS_ENDPOINT_H_
