// Sends one body to an HTTP or HTTPS address through cpp-httplib, and waits for the answer.
//
// Threads: any; a call blocks its thread. Failure: Unavailable where no answer comes in time, Unauthenticated
// where the server's certificate is not of the authority, InvalidArgument for a malformed address, and
// Internal with the code of an answer that is no success.
#ifndef WEFT_BASE_NET_HTTP_POST_H_
#define WEFT_BASE_NET_HTTP_POST_H_

#include <string>

#include "absl/status/status.h"

namespace weft {

struct HttpPost {
  std::string url;        // "https://host:8082/path"
  std::string authority;  // file of certificates that the server's is checked against; "" for the system's
  std::string token;      // bearer token; "" for none
  std::string type;       // of the body: "application/json"
  std::string body;
  int timeout_seconds = 5;  // of each of: connecting, sending, the answer
};

absl::Status Post(const HttpPost& post);

}  // namespace weft

#endif  // WEFT_BASE_NET_HTTP_POST_H_
