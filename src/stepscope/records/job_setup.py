"""How a job is set up, as its own process recorded it: device, loader, wrappers, threads."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetup:
    """The settings of a ``DataLoader``; None where they were not recorded."""

    workers: int | None = None
    pinned: bool | None = None
    persistent: bool | None = None
    prefetch: int | None = None
    sampler: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """What one rank recorded of its job; None where it did not.

    device: cpu | cuda | rocm. cores: that this rank may use; threads: of one operator. wrapped: keys of wrappers with at
    least one module (ddp, fsdp1, fsdp2). mesh: names of the dimensions of its device meshes. parameters: elements that
    the optimizer steps, of the whole model.
    """

    device: str | None = None
    compiled: bool | None = None
    cores: int | None = None
    threads: int | None = None
    wrapped: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ()
    loader: LoaderSetup | None = None
    bucket_cap_bytes: int | None = None
    parameters: int | None = None
