"""The manifest of a training job for Kubeflow: a PyTorchJob, or a TrainJob. Pure: nothing is asked or run.

Each pod starts the ranks of its node with torchrun, which takes its place among the pods from the variables that the
operator sets (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, ...). The first pod starts and watches the job in a folder of a
shared volume; the others take part in it. Field names: kubeflow/trainer, manifests/base/crds, of release-1.9
(kubeflow.org/v1) and release-2.3 (trainer.kubeflow.org/v1alpha1, which has ``runtimePatches`` since 2.2), 2026-11.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from stepscope.core.dataclass import record

KINDS = ("pytorchjob", "trainjob")
RUNTIME = "torch-distributed"
"""The runtime of a TrainJob that Kubeflow Trainer installs."""
MOUNT = "/stepscope"
MAX_NAME = 50
"""Of the 63 characters that a pod's name may have, the operator needs the rest."""


@record
class TrainingJob:
    """A training command on pods. program: torchrun's options, script and arguments. watcher: further options of
    ``stepscope run``. claim: a PersistentVolumeClaim that all pods can write; None: one pod alone, which keeps its results
    until it ends. None of cpus and memory: no limit.
    """

    name: str
    image: str
    program: tuple[str, ...]
    watcher: tuple[str, ...] = ()
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_per_node: str | None = None
    namespace: str | None = None
    claim: str | None = None
    runtime: str = RUNTIME


def dns_name(text: str) -> str:
    """Turn ``text`` into a name in Kubernetes: small letters, digits and dashes, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MAX_NAME].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")


def manifest_text(job: TrainingJob, *, kind: str, typed: str) -> str:
    """Return the manifest as YAML. typed: the command that made it."""
    document = _train_job(job) if kind == "trainjob" else _pytorch_job(job)
    return f"# Written by: {typed}\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120)


def _pod_script(job: TrainingJob) -> str:
    """Return what the shell of a pod runs."""
    folder = f"{MOUNT}/{job.name}"
    train = shlex.join(["torchrun", *job.program])
    first = shlex.join(["stepscope", "run", *job.watcher, "-o", folder, "--"])
    if job.nodes == 1:
        return f"exec {first} {train}\n"
    others = shlex.join(["stepscope", "run", "--join", "-o", folder, "--"])
    return f'if [ "$PET_NODE_RANK" = 0 ]; then\n  exec {first} {train}\nfi\nexec {others} {train}\n'


def _pytorch_job(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a PyTorchJob."""
    container: dict[str, Any] = {"name": "pytorch", "image": job.image, "command": ["sh", "-c", _pod_script(job)]}
    if resources := _pod_resources(job):
        container["resources"] = {"limits": resources}
    pods = {"containers": [{**container, "volumeMounts": _pod_mounts()}], "volumes": _pod_volumes(job)}
    replica = {"restartPolicy": "Never", "template": {"spec": pods}}
    replicas = {"Master": {"replicas": 1, **replica}}
    if job.nodes > 1:
        replicas["Worker"] = {"replicas": job.nodes - 1, **replica}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _job_metadata(job),
        "spec": {
            "nprocPerNode": str(job.ranks_per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": replicas,
        },
    }


def _train_job(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a TrainJob."""
    trainer: dict[str, Any] = {
        "image": job.image,
        "command": ["sh", "-c", _pod_script(job)],
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks_per_node,
    }
    if resources := _pod_resources(job):
        trainer["resourcesPerNode"] = {"limits": resources}
    pods = {"volumes": _pod_volumes(job), "containers": [{"name": "node", "volumeMounts": _pod_mounts()}]}
    node = {"name": "node", "template": {"spec": {"template": {"spec": pods}}}}
    patch = {"manager": "stepscope.org/k8s", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _job_metadata(job),
        "spec": {"runtimeRef": {"name": job.runtime}, "trainer": trainer, "runtimePatches": [patch]},
    }


def _job_metadata(job: TrainingJob) -> dict[str, str]:
    return {"name": job.name, **({} if job.namespace is None else {"namespace": job.namespace})}


def _pod_resources(job: TrainingJob) -> dict[str, Any]:
    asked = {"nvidia.com/gpu": job.gpus_per_node, "cpu": job.cpus_per_node, "memory": job.memory_per_node}
    return {name: amount for name, amount in asked.items() if amount is not None}


def _pod_mounts() -> list[dict[str, str]]:
    return [{"name": "stepscope", "mountPath": MOUNT}, {"name": "shm", "mountPath": "/dev/shm"}]


def _pod_volumes(job: TrainingJob) -> list[dict[str, Any]]:
    """Return the results' volume, and shared memory for NCCL and workers of data loaders: a pod has 64 MB of it
    otherwise."""
    results: dict[str, Any] = (
        {"emptyDir": {}} if job.claim is None else {"persistentVolumeClaim": {"claimName": job.claim}}
    )
    return [{"name": "stepscope", **results}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice, and scripts line by line."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - signature of PyYAML
        return True


def _yaml_text_node(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _yaml_text_node)
