"""The machine a step runs on: GPUs, nodes, and the network between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from stepscope.machine.peaks import Accelerator
from stepscope.predict.collectives.choose import call_us, candidates, known_gpu
from stepscope.predict.collectives.fabrics import Fabric, find_fabric
from stepscope.predict.collectives.machine import Place, place


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """gpus: all of them. gpus_per_node, network, adapters_per_node: None: what is usual for the GPU (with a note)."""

    gpu: Accelerator
    gpus: int
    gpus_per_node: int | None = None
    network: Fabric | None = None
    adapters_per_node: int | None = None
    sharp: bool = False

    @classmethod
    def of(cls, gpu: str, gpus: int, *, network: str | None = None, gpus_per_node: int | None = None) -> Cluster:
        """From names. Raises UsageError with did-you-mean."""
        fabric = None if network is None else find_fabric(network)
        return cls(gpu=known_gpu(gpu), gpus=gpus, gpus_per_node=gpus_per_node, network=fabric)

    @cached_property
    def whole(self) -> Place:
        """Where all its GPUs sit."""
        return place(
            self.gpu, n_gpus=self.gpus, gpus_per_node=self.gpus_per_node, fabric=self.network,
            adapters_per_node=self.adapters_per_node, sharp=self.sharp, caller="nccl-tests",
        )  # fmt: skip

    @cached_property
    def domain(self) -> int:
        """GPUs that reach each other without the network: a node, or an NVLink rack."""
        return max(1, round(self.whole.domain_ranks)) if self.whole.domains > 1 else self.gpus

    @cached_property
    def _known(self) -> dict[tuple[str, int, int, int], float]:
        return {}

    def group(self, size: int, stride: int) -> Place:
        """Where a group of every ``stride``-th rank sits; the other groups use the adapters at the same time."""
        whole = self.whole
        inside = min(size, max(1, self.domain // stride))
        domains = -(-size // inside)
        if domains == 1:
            near = place(
                self.gpu, n_gpus=size, gpus_per_node=size, fabric=None, adapters_per_node=None, sharp=self.sharp,
                caller="nccl-tests",
            )  # fmt: skip
            return replace(near, domain_ranks=size, domains=1)
        return replace(
            whole, ranks=size, domain_ranks=size / domains, domains=domains, node_net=whole.gpu_net * size / domains,
            all_pairs=False,
        )  # fmt: skip

    def time(self, op: str, size_bytes: float, size: int, stride: int) -> float:
        """Seconds of one collective of such a group; size_bytes as nccl-tests counts them."""
        if size <= 1 or size_bytes <= 0:
            return 0.0
        key = op, round(size_bytes), size, stride
        if key not in self._known:
            where = self.group(size, stride)
            offered = [c for c in candidates(op, key[1], where) if c.offered]
            self._known[key] = (min(offered, key=lambda c: c.chosen_by_us).time_us + call_us(where)) / 1e6
        return self._known[key]
