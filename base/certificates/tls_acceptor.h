// Serves the server's end of TLS on sockets that do not block, for a loop that polls them: every client has a
// certificate of an authority that the folder of certificates trusts (certificate_folder.h).
//
// The folder is followed (certificate_watch.h): new connections use what it holds then. Threads: a
// connection is used by one thread at a time; Accept may be called from any. Failure of Start: as
// ReadCertificateFolder.
#ifndef WEFT_BASE_CERTIFICATES_TLS_ACCEPTOR_H_
#define WEFT_BASE_CERTIFICATES_TLS_ACCEPTOR_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/certificates/certificate_watch.h"

namespace weft {

class TlsConnection {
 public:
  virtual ~TlsConnection() = default;

  // Read and write as recv and send do: -1 with EAGAIN means later; the handshake is made on the way. Any
  // other -1, or 0 of Read, ends the connection.
  virtual ssize_t Read(void* to, size_t size) = 0;
  virtual ssize_t Write(const void* from, size_t size) = 0;
  // Returns true if the last -1 with EAGAIN waits until the socket can be written to; else until it can be
  // read.
  virtual bool wants_write() const = 0;

  // Returns the URIs in the client's certificate, once something was read.
  virtual std::vector<std::string> peer_uris() const = 0;
};

class TlsAcceptor {
 public:
  virtual ~TlsAcceptor() = default;

  static absl::StatusOr<std::unique_ptr<TlsAcceptor>> Start(const std::string& folder,
                                                            CertificateWatch::Observer observer);

  // Begins a connection on a socket that does not block, which stays the caller's.
  virtual std::unique_ptr<TlsConnection> Accept(int fd) = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_CERTIFICATES_TLS_ACCEPTOR_H_
