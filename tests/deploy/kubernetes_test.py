#!/usr/bin/env python3
"""Builds deploy/kubernetes and holds it against a policy and against the programs: kubernetes_test.py BIN_DIR

Kubeflow's runtime and its example must have pods of the same policy, and be held against Kubeflow's own models where Python has
kubeflow-trainer-api; kubeflow_test.py runs its containers. Each overlay must build; its pods must fit the restricted policy of Pod Security (that of RDMA may lock memory); each flag must be one
of the program; each secret, claim, label and port must be there on both sides; the policies of the network must let through what the
programs need, and nothing else; the certificates of cert-manager must have the roles of the programs. Needs kubectl 1.27 or a newer one, and PyYAML; exits with 77 without them. With the Python package
kubernetes-validate each object is also held against the schema of its kind."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

from network_policies import Pod, allowed_flows

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = SOURCE / "deploy/kubernetes"
SCHEMA_VERSION = "1.29"


def build(overlay):
    import yaml
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    objects = [o for o in yaml.safe_load_all(done.stdout) if o]
    assert objects, overlay
    return objects


def is_new_enough():
    """Says whether kubectl knows the fields of our kustomizations."""
    text = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True).stdout
    return int(re.match(r"\d+", json.loads(text)["clientVersion"]["minor"])[0]) >= 27


def of_kind(objects, *kinds):
    return [o for o in objects if o["kind"] in kinds]


def check_pod(pod, may_lock):
    """Pod Security, restricted: https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
    assert context["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        assert not pod.get(key), key
    for volume in pod["volumes"]:
        assert set(volume) - {"name"} <= {"secret", "persistentVolumeClaim", "emptyDir"}, volume
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
        assert own["capabilities"]["drop"] == ["ALL"]
        assert own["capabilities"].get("add", []) == (["IPC_LOCK"] if may_lock else []), own
        assert not container["image"].endswith(":latest") and ":" in container["image"], container["image"]
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
        assert "livenessProbe" in container and "startupProbe" in container
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert mounted == {v["name"] for v in pod["volumes"]}, mounted
        ports = {p["name"] for p in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["tcpSocket"]["port"] in ports, probe


def check_flags(container, bin_dir):
    """Every flag must be in the program's help."""
    program = container["command"][0]
    text = subprocess.run([bin_dir / program, "--help"], capture_output=True, text=True, check=True).stdout
    for argument in container["args"]:
        flag = argument.split("=")[0]
        assert re.search(rf"(^|\s){re.escape(flag)}\b", text), f"{program} has no {flag}"


def check_links(objects):
    """Checks that pods and services name only each other's existing parts."""
    claims = {o["metadata"]["name"] for o in of_kind(objects, "PersistentVolumeClaim")}
    pods = [o["spec"]["template"] for o in of_kind(objects, "Deployment", "StatefulSet")]
    labels = [pod["metadata"]["labels"] for pod in pods]
    services = {o["metadata"]["name"]: o for o in of_kind(objects, "Service")}
    for pod in pods:
        for volume in pod["spec"]["volumes"]:
            assert "persistentVolumeClaim" not in volume or volume["persistentVolumeClaim"]["claimName"] in claims, volume
        for argument in pod["spec"]["containers"][0]["args"]:
            if argument.startswith("--coordinator="):
                host, port = argument.split("=")[1].split(":")
                assert int(port) in [p["port"] for p in services[host]["spec"]["ports"]], argument

    def selects(selector):
        return any(selector.items() <= of_pod.items() for of_pod in labels)
    for service in services.values():
        assert selects(service["spec"]["selector"]), service["metadata"]["name"]


def check_namespace(objects, level):
    """Checks that everything is in one namespace, which takes pods of that level of Pod Security."""
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level, namespace
    for o in objects:
        assert o is namespace or o["metadata"]["namespace"] == namespace["metadata"]["name"], o["metadata"]


def check_network(objects, collectives):
    """Checks that each pod has the flows that it needs, and no other. NCCL listens on ports that the kernel chooses, where workers have
    `collectives`."""
    namespace = of_kind(objects, "Namespace")[0]["metadata"]["name"]
    templates = {o["metadata"]["name"]: o["spec"]["template"] for o in of_kind(objects, "Deployment", "StatefulSet")}
    labels = {name: template["metadata"]["labels"] for name, template in templates.items()}
    flags = {name: dict(a.removeprefix("--").split("=") for a in template["spec"]["containers"][0]["args"])
             for name, template in templates.items()}
    client = {"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "client"}
    pods = [Pod("coordinator", namespace, labels["weft-coordinator"]), Pod("worker 0", namespace, labels["weft-worker"]),
            Pod("worker 1", namespace, labels["weft-worker"]), Pod("client", namespace, client), Pod("stranger", namespace),
            Pod("worker elsewhere", "elsewhere", labels["weft-worker"]), Pod("client elsewhere", "elsewhere", client),
            Pod("prometheus", "monitoring"), Pod("dns", "kube-system", {"k8s-app": "kube-dns"}), Pod("system", "kube-system"),
            Pod("internet", None)]
    serves, of_coordinator, of_workers = (int(flags[name][flag].split(":")[1]) for name, flag in
                                          (("weft-coordinator", "listen"), ("weft-coordinator", "metrics"), ("weft-worker", "metrics")))
    first, last = map(int, flags["weft-worker"]["data-ports"].split("-"))
    needed = {("client", "coordinator", serves, "TCP"), ("prometheus", "coordinator", of_coordinator, "TCP")}
    for worker, other in (("worker 0", "worker 1"), ("worker 1", "worker 0")):
        needed |= {(worker, "coordinator", serves, "TCP"), ("prometheus", worker, of_workers, "TCP"),
                   *((worker, other, port, "TCP") for port in (first, last))}
    for pod in ("worker 0", "worker 1", "client"):
        needed |= {(pod, "dns", 53, protocol) for protocol in ("TCP", "UDP")}
    ports = {port for *_, port, _ in needed} | {22, 443, first - 1, last + 1, 1023, 1024, 65535}
    if collectives:
        workers = ("worker 0", "worker 1")
        needed |= {(*pair, port, "TCP") for pair in (workers, workers[::-1]) for port in ports if port >= 1024}
    found = allowed_flows(of_kind(objects, "NetworkPolicy"), pods, ports, namespace)
    assert found == needed, f"missing: {sorted(needed - found)}, too many: {sorted(found - needed)}"


def check_certificates(objects):
    secrets = {o["spec"]["secretName"]: o["spec"] for o in of_kind(objects, "Certificate")}
    for pod in of_kind(objects, "Deployment", "StatefulSet"):
        wanted = [v["secret"]["secretName"] for v in pod["spec"]["template"]["spec"]["volumes"] if "secret" in v]
        for name in wanted:
            role = pod["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
            assert [uri.split("/")[2] for uri in secrets[name]["uris"]] == [role], name
            # A worker serves the tensors of others, and a coordinator may call etcd.
            assert set(secrets[name]["usages"]) == {"server auth", "client auth"}, name
    hosts = {name: set(spec.get("dnsNames", [])) for name, spec in secrets.items()}
    assert not hosts["weft-coordinator-tls"] & hosts["weft-worker-tls"], "a worker could pose as the coordinator"


def check_schemas(objects):
    try:
        import kubernetes_validate
    except ImportError:
        print("note: without the Python package kubernetes-validate, no object was held against its schema", file=sys.stderr)
        return
    for o in objects:
        if not o["apiVersion"].startswith("cert-manager.io/"):
            kubernetes_validate.validate(o, SCHEMA_VERSION, strict=True)


def check_kubeflow(bin_dir):
    """The runtime of Kubeflow Trainer, whose jobs are held against the schema of a Job each."""
    import yaml
    runtime, example = (yaml.safe_load((FOLDER / "kubeflow" / f"{name}.yaml").read_text()) for name in ("runtime", "trainjob"))
    spec = runtime["spec"]["template"]["spec"]
    jobs = {j["name"]: j["template"] for j in spec["replicatedJobs"]}
    for job in jobs.values():
        check_pod(job["spec"]["template"]["spec"], may_lock=False)
        check_schemas([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": job["spec"]}])
    # Trainer finds the pods of a TrainJob's `trainer` by these names and this label.
    assert jobs["node"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = jobs["node"]["spec"]["template"]["spec"]["containers"][0]
    assert node["name"] == "node"
    check_flags(node, bin_dir)
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["coordinator"] and "coordinator" in jobs
    assert example["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    check_kubeflow_models(runtime, example)
    print(f"kubeflow: {len(jobs)} jobs are right")


def check_kubeflow_models(runtime, example):
    try:
        import pydantic
        from kubeflow_trainer_api import models
    except ImportError:
        print("note: without the Python package kubeflow-trainer-api, nothing was held against Kubeflow's models", file=sys.stderr)
        return
    models.TrainerV1alpha1TrainJob.model_validate(example)
    try:
        models.TrainerV1alpha1ClusterTrainingRuntime.model_validate(runtime)
    except pydantic.ValidationError as error:
        # Quantities and ports are texts or numbers in Kubernetes, and objects in these models.
        wrong = [e for e in error.errors() if e.get("ctx", {}).get("class_name") not in
                 ("IoK8sApimachineryPkgApiResourceQuantity", "IoK8sApimachineryPkgUtilIntstrIntOrString")]
        assert not wrong, wrong


def main():
    try:
        import yaml  # noqa: F401
        missing = shutil.which("kubectl") is None or not is_new_enough()
    except ImportError:
        missing = True
    if missing:
        print("SKIPPED: deploy/kubernetes was not built: it takes kubectl 1.27 and PyYAML", file=sys.stderr)
        return 77
    bin_dir = pathlib.Path(sys.argv[1]).absolute()
    for overlay in [FOLDER / "base", *sorted((FOLDER / "overlays").iterdir())]:
        objects = build(overlay)
        for pod in of_kind(objects, "Deployment", "StatefulSet"):
            may_lock = overlay.name == "rdma" and pod["kind"] == "StatefulSet"
            check_pod(pod["spec"]["template"]["spec"], may_lock)
            check_flags(pod["spec"]["template"]["spec"]["containers"][0], bin_dir)
        check_links(objects)
        check_namespace(objects, "privileged" if overlay.name == "rdma" else "restricted")
        check_network(objects, collectives=overlay.name in ("gpu", "rdma"))
        if of_kind(objects, "Certificate"):
            check_certificates(objects)
        check_schemas(objects)
        gpus = [c["resources"]["limits"].get("nvidia.com/gpu") for o in of_kind(objects, "StatefulSet")
                for c in o["spec"]["template"]["spec"]["containers"]]
        assert gpus == [1 if overlay.name in ("gpu", "rdma") else None], (overlay.name, gpus)
        print(f"{overlay.name}: {len(objects)} objects are right")
    check_kubeflow(bin_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
