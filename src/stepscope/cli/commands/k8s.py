"""``stepscope k8s``: the manifest of a training job for Kubernetes."""

from __future__ import annotations

from stepscope.cli.command import REQUIRED, Command, Options, argument, option


class K8s(Options):
    """Print the manifest that runs a training command on pods of Kubeflow, every step watched as by `stepscope run`.

    stepscope k8s --image IMAGE --nodes 2 --gpus-per-node 8 --claim shared -- torchrun train.py | kubectl create -f -
    """

    command: list[str] = argument(
        "The training command; or run with its options, and then the command.", "-- COMMAND..."
    )
    image: str = option("Image of the pods, which has torch and stepscope.", "IMAGE", default=REQUIRED)
    kind: str = option("pytorchjob (kubeflow.org/v1) or trainjob (Kubeflow Trainer 2.2 or newer).", "KIND",
                       default="pytorchjob")  # fmt: skip
    name: str | None = option("Name of the job; default: of the script. Its results are in /stepscope/NAME.", "NAME")
    namespace: str | None = option("Namespace.", "NAME")
    nodes: int = option("Number of pods.", "N", default=1, min=1)
    gpus_per_node: int | None = option("GPUs of each pod, one rank on each.", "N", min=1)
    ranks_per_node: int | None = option("Ranks in each pod; default: one for each GPU.", "N", min=1)
    cpus_per_node: int | None = option("Limit of cores of each pod.", "N", min=1)
    memory_per_node: str | None = option("Limit of memory of each pod: 64Gi.", "SIZE")
    claim: str | None = option(
        "PersistentVolumeClaim for the results, which all pods can write. Needed for several pods.", "NAME"
    )
    runtime: str | None = option("Of a trainjob: its runtime; default: torch-distributed.", "NAME")


COMMAND = Command(options=K8s, where="stepscope.cli.k8s_run", panel="On a cluster")
