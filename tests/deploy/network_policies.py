"""Says which flows between pods the NetworkPolicies of Kubernetes let through.

https://kubernetes.io/docs/concepts/services-networking/network-policies/: a flow needs leave of the policies that select its source
(Egress) and of those that select its destination (Ingress); where none selects the pod in that direction, everything passes. What
the policies here do not use, as ipBlock, is an error."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod, or with the namespace None what is no pod of the cluster."""
    name: str
    namespace: str | None
    labels: dict = dataclasses.field(default_factory=dict, hash=False)


def selects(selector, labels):
    assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
    expressions = selector.get("matchExpressions", [])
    assert all(e["operator"] == "In" for e in expressions), expressions
    return (all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
            and all(labels.get(e["key"]) in e["values"] for e in expressions))


def is_peer(peer, pod, namespace):
    """Says whether an entry of `from` or `to`, in a policy of that namespace, means the pod."""
    assert peer and set(peer) <= {"podSelector", "namespaceSelector"}, peer
    if pod.namespace is None:
        return False
    if "namespaceSelector" in peer:
        there = selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": pod.namespace})
    else:
        there = pod.namespace == namespace
    return there and selects(peer.get("podSelector", {}), pod.labels)


def is_port(entry, port, protocol):
    assert set(entry) <= {"port", "endPort", "protocol"}, entry
    return entry["port"] <= port <= entry.get("endPort", entry["port"]) and protocol == entry.get("protocol", "TCP")


def lets_through(policies, pod, direction, other, port, protocol):
    """Says whether the pod may have that flow with the other, as far as its own policies go."""
    own = [p for p in policies if pod.namespace == p["metadata"]["namespace"] and direction in p["spec"]["policyTypes"]
           and selects(p["spec"]["podSelector"], pod.labels)]
    rules_key, peers_key = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
    for policy in own:
        for rule in policy["spec"].get(rules_key, []):
            peers, ports = rule.get(peers_key), rule.get("ports")
            if ((not peers or any(is_peer(peer, other, policy["metadata"]["namespace"]) for peer in peers))
                    and (not ports or any(is_port(entry, port, protocol) for entry in ports))):
                return True
    return not own


def allowed_flows(policies, pods, ports, namespace):
    """Returns the flows (source, destination, port, protocol), by names, that pass and begin or end in the namespace."""
    return {(source.name, destination.name, port, protocol)
            for source in pods for destination in pods for port in ports for protocol in ("TCP", "UDP")
            if source is not destination and namespace in (source.namespace, destination.namespace)
            and lets_through(policies, source, "Egress", destination, port, protocol)
            and lets_through(policies, destination, "Ingress", source, port, protocol)}
