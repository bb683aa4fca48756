"""How a job is set up, as its own process recorded it: device, loader, wrappers, threads."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetup:
    """The settings of a job's ``DataLoader``; None where they were not recorded, or its loaders differ.

    divided: every rank reads its own share, by a ``DistributedSampler``.
    """

    workers: int | None = None
    pinned: bool | None = None
    persistent: bool | None = None
    prefetch: int | None = None
    divided: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """What one rank recorded of its job; None where it did not.

    objects: ``package.Class`` of the frameworks' objects that live in it. device: cpu | cuda. cores: that this rank may
    use; threads: of one operator. wrapped: keys of wrappers with at least one module (ddp, fsdp1, fsdp2). mesh: names of
    the dimensions of its DTensors' meshes. parameters: elements that the optimizer steps, of the whole model.
    micro_batches, chunks: of a pipeline's step, and stages on this rank; schedule: its class.
    """

    objects: tuple[str, ...] = ()
    device: str | None = None
    compiled: bool | None = None
    cores: int | None = None
    threads: int | None = None
    wrapped: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ()
    loader: LoaderSetup | None = None
    bucket_cap_bytes: int | None = None
    parameters: int | None = None
    micro_batches: int | None = None
    chunks: int | None = None
    schedule: str | None = None
