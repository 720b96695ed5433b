// Runs `weft certs init`, `add` and `token`: makes an authority, and certificates and tokens for coordinator,
// workers and clients.
//
//   DIR/authority/{ca.crt,ca.key}        the authority; ca.key makes certificates, and nothing else needs it
//   DIR/NAME/{ca.crt,tls.crt,tls.key}    the folder of one identity, for --tls
//   DIR/tokens                           hashes of tokens (coordinator/shell/user_tokens.h)
//
// `init` makes the authority unless it is there, and a folder for each role, named like it. `add` makes one
// folder more. `init` gives the names of hosts to the coordinator's certificate alone, and `add` to those of
// roles that serve. A folder that is there is replaced at one instant, so a program that uses it always finds
// files that fit together. Files with a key are readable by their owner alone.
#ifndef WEFT_CLIENT_COMMANDS_CERTS_COMMAND_H_
#define WEFT_CLIENT_COMMANDS_CERTS_COMMAND_H_

#include <string>
#include <vector>

#include "client/console/console.h"

namespace weft {

struct CertsOptions {
  std::string action;  // init, add, token
  std::string folder;
  std::string role, name;          // of add and token
  std::vector<std::string> hosts;  // names and addresses for a certificate that serves
  int days = 365;
  bool json = false;
};

ExitCode RunCerts(const CertsOptions& options);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_CERTS_COMMAND_H_
