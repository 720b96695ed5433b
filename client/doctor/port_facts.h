// Finds which ports this machine can still listen on, by listening on them for a moment.
#ifndef WEFT_CLIENT_DOCTOR_PORT_FACTS_H_
#define WEFT_CLIENT_DOCTOR_PORT_FACTS_H_

#include <optional>
#include <string>

namespace weft {

struct PortFacts {
  std::string listen;          // HOST:PORT at which a coordinator here would listen; "": it takes none
  std::string listen_problem;  // why nothing more can listen there; "" if it can
  bool is_asked = false;       // the coordinator that answered listens there
  // --data-ports of workers here, as 20000-20100 or 20000; "" for any. Nothing where no worker tells it.
  std::optional<std::string> data_ports;
  int all_data_ports = 0, free_data_ports = 0;  // of that range
};

// Tries the addresses. `listen` and `data_ports` are as in the fields.
PortFacts ReadPortFacts(const std::string& listen, const std::optional<std::string>& data_ports);

}  // namespace weft

#endif  // WEFT_CLIENT_DOCTOR_PORT_FACTS_H_
