"""Manifests for Kubeflow: what the pods run, and that the operators' own schemas take them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepscope.cli import k8s_run
from stepscope.cli.commands.k8s import K8s
from stepscope.core.errors import UsageError
from stepscope.launch.kubernetes import TrainingJob, dns_name, manifest_text

JOB = TrainingJob(
    name="train", image="me/torch:1", program=("train.py", "--name", "it's mine"), watcher=("--deep", "off"), nodes=3,
    ranks_per_node=8, gpus_per_node=8, cpus_per_node=64, memory_per_node="512Gi", namespace="team", claim="shared",
)  # fmt: skip
ALONE = TrainingJob(name="one", image="me/torch:1", program=("-m", "my.train"))


def manifest(job: TrainingJob, kind: str) -> dict[str, Any]:
    return yaml.safe_load(manifest_text(job, kind=kind, typed="stepscope k8s"))


def script(document: dict[str, Any]) -> str:
    spec = document["spec"]
    if document["kind"] == "TrainJob":
        return spec["trainer"]["command"][2]
    pods = {name: replica["template"]["spec"] for name, replica in spec["pytorchReplicaSpecs"].items()}
    assert len({yaml.safe_dump(pod) for pod in pods.values()}) == 1, "all pods are alike"
    return pods["Master"]["containers"][0]["command"][2]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_the_first_pod_watches_and_the_others_take_part(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "stepscope"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    text = script(manifest(JOB, kind))

    def words(node: int) -> list[str]:
        environ = {"PATH": f"{tmp_path}:/bin:/usr/bin", "PET_NODE_RANK": str(node)}
        return subprocess.run(
            ["sh", "-c", text], env=environ, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    train = ["--", "torchrun", "train.py", "--name", "it's mine"]
    assert words(0) == ["run", "--deep", "off", "-o", "/stepscope/train", *train]
    assert words(2) == ["run", "--join", "-o", "/stepscope/train", *train]


def test_a_pytorchjob_has_a_master_and_the_other_pods_as_workers() -> None:
    spec = manifest(JOB, "pytorchjob")["spec"]
    assert {name: replica["replicas"] for name, replica in spec["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 2,
    }
    assert spec["nprocPerNode"] == "8"
    assert list(manifest(ALONE, "pytorchjob")["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_a_trainjob_has_nodes_ranks_and_the_volume() -> None:
    spec = manifest(JOB, "trainjob")["spec"]
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (3, 8)
    assert "shared" in yaml.safe_dump(spec["runtimePatches"])


def complaints(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """What the API server would say of ``value``: a schema of a CRD is structural, so this is all there is to it."""
    if schema.get("x-kubernetes-int-or-string"):
        kinds: tuple[type, ...] = (int, str)
    else:
        kinds = {"object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "boolean": (bool,)}[
            schema["type"]
        ]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        yield f"{at}: {value!r} is not {schema.get('type')}"
    elif isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{at}.{name}: missing" for name in schema.get("required", []) if name not in value)
        for name, each in value.items():
            inner = known.get(name, more if isinstance(more, dict) else None)
            if inner is not None:
                yield from complaints(each, inner, f"{at}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and (known or not at.endswith(".metadata")):
                yield f"{at}.{name}: unknown field"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from complaints(each, schema["items"], f"{at}[{number}]")
    elif ("enum" in schema and value not in schema["enum"]) or not re.search(schema.get("pattern", ""), str(value)):
        yield f"{at}: {value!r} is not allowed"


CRDS = {"pytorchjob": "kubeflow.org_pytorchjobs.yaml", "trainjob": "trainer.kubeflow.org_trainjobs.yaml"}


@pytest.mark.parametrize("job", [JOB, ALONE], ids=["three-pods", "one-pod"])
@pytest.mark.parametrize("kind", CRDS)
def test_the_operators_own_schema_takes_the_manifest(kind: str, job: TrainingJob) -> None:
    folder = os.environ.get("STEPSCOPE_CRDS")
    if folder is None:
        pytest.skip(
            "STEPSCOPE_CRDS names no folder with manifests/base/crds of kubeflow/trainer (release-1.9, release-2.3)"
        )
    crd = yaml.safe_load((Path(folder) / CRDS[kind]).read_text())
    document = manifest(job, kind)
    group, _, version = document["apiVersion"].partition("/")
    assert (crd["spec"]["group"], crd["spec"]["names"]["kind"]) == (group, document["kind"])
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"] if each["name"] == version)
    assert list(complaints(document, schema)) == []
    document["spec"]["typo"] = 1
    assert list(complaints(document, schema)) == [".spec.typo: unknown field"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 2}, "a folder that all of them see"),
        ({"kind": "pytorch"}, "did you mean 'pytorchjob'"),
        ({"name": "My Job"}, "not a name in Kubernetes"),
        ({"runtime": "mine"}, "--kind trainjob"),
        ({"memory_per_node": "much"}, "not a size"),
        ({"gpus_per_node": 4, "command": ["torchrun", "--nproc-per-node=2", "t.py"]}, "2 ranks in each pod"),
        ({"command": ["run", "-o", "here", "--", "t.py"]}, "decides the folder"),
        ({"command": ["run", "--nccl-debug", "--", "t.py"], "nodes": 2, "claim": "c"}, "--nccl-debug"),
        ({"command": ["stepscope", "bench", "m.yaml"]}, "runs a training command"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        k8s_run.run(K8s(**{"command": ["train.py"], "image": "me", **options}))


def test_the_command_prints_one_manifest_with_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "kind": "trainjob", "name": "mine", "namespace": "team", "nodes": 2, "gpus_per_node": 4, "ranks_per_node": 2,
        "cpus_per_node": 16, "memory_per_node": "64Gi", "claim": "shared", "runtime": "mine-torch",
    }  # fmt: skip
    assert k8s_run.run(K8s(command=["run", "--deep", "off", "--", "torchrun", "train.py"], image="me", **options)) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["metadata"] == {"name": "mine", "namespace": "team"}
    assert printed["spec"]["runtimeRef"] == {"name": "mine-torch"}
    trainer = printed["spec"]["trainer"]
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 4, "cpu": 16, "memory": "64Gi"}
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 2, "me")


@pytest.mark.parametrize(("text", "name"), [("Train_GPT.2", "train-gpt-2"), ("7b", "job-7b"), ("a" * 80, "a" * 50)])
def test_a_script_gives_a_name_that_kubernetes_takes(text: str, name: str) -> None:
    assert dns_name(text) == name
