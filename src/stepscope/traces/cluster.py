"""Trace files read by the workers of a dask cluster: of one that runs, or of one that is begun on this machine's cores.

Files go out in batches, and what each rank contributes comes back: its pass, not its events. A worker that is lost costs
what it was reading, which is read again elsewhere; a file that keeps ending workers is given up alone, with the reason.
"""

from __future__ import annotations

import logging
import socket
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope import __version__
from stepscope.core.errors import DataError, MissingError, StepscopeError, UsageError
from stepscope.core.installing import install_extra
from stepscope.core.words import counted

if TYPE_CHECKING:
    from distributed import Client, Future

    from stepscope.records.trace_summary import RankPass

SCHEME = "dask://"
_SAME = f"install the wheel of stepscope {__version__} where the workers run (`make wheel` in a checkout)"

BATCH_BYTES, BATCH_FILES = 16 << 20, 32
"""Of files that one worker reads in a row: a second of work, against a few ms that handing it over takes."""

CONNECT_S = 5.0
WORKERS_S = 10.0
"""How long a scheduler may have no worker before anything is read."""
ALONE_S = 60.0
"""How long it may have none later on: lost ones are started again, or come back from a queue."""
LOOK_S = 2.0
LOSSES = 2
"""Workers of ours that one batch, and then one file, may end; a scheduler that runs already has its own number."""


class NotReadError(DataError):
    """A file that was given up: whatever reads it is ended."""


def installed() -> bool:
    """Return whether dask's ``distributed`` is installed."""
    return find_spec("distributed") is not None


def scheduler_of(text: str) -> str:
    """Turn ``dask://HOST:PORT`` into the scheduler's address as dask writes it. Raises UsageError, MissingError."""
    host, _, port = text.removeprefix(SCHEME).rstrip("/").rpartition(":")
    if not text.startswith(SCHEME) or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"--executor {text!r}: expected dask://HOST:PORT", fix="for example --executor dask://node0:8786"
        )
    if not installed():
        raise MissingError(
            f"--executor {text} needs dask",
            why="its package distributed is not installed",
            fix=install_extra("cluster"),
        )
    return f"tcp://{host}:{port}"


def read_on_cluster(
    work: Callable[[Path], tuple[RankPass, ...]],
    files: Sequence[Path],
    *,
    scheduler: str | None,
    workers: int,
    size_of: Callable[[Path], int],
    done: Callable[[Path], None],
) -> dict[Path, tuple[RankPass, ...] | StepscopeError]:
    """Return by file its pass, or why there is none. ``scheduler`` None: ``workers`` processes are started on this machine.

    Raises MissingError where there is no scheduler or no worker, or where workers cannot read.
    """
    outcomes: dict[Path, tuple[RankPass, ...] | StepscopeError] = {}
    order = sorted(files, key=size_of, reverse=True)  # so that no worker starts a long one last
    with _dask_silenced(), _connected_client(scheduler, min(workers, len(files))) as client:
        _require_workers(client)
        lost = _unread_batches(client, work, _file_batches(order, size_of), outcomes, done)
        for file in (file for batch in lost for file in batch):
            # One after the other: whatever ends a worker now is the file that it reads.
            if _unread_batches(client, work, [[file]], outcomes, done):
                outcomes[file] = _killed_workers_error(file)
                done(file)
    return outcomes


def _file_batches(files: Sequence[Path], size_of: Callable[[Path], int]) -> list[list[Path]]:
    """Return the files in order, in batches of few files and bytes."""
    batches: list[list[Path]] = []
    left = 0
    for file in files:
        left -= size_of(file)
        if not batches or left < 0 or len(batches[-1]) == BATCH_FILES:
            batches.append([])
            left = BATCH_BYTES - size_of(file)
        batches[-1].append(file)
    return batches


def _unread_batches(
    client: Client,
    work: Callable[[Path], tuple[RankPass, ...]],
    batches: Sequence[Sequence[Path]],
    outcomes: dict[Path, tuple[RankPass, ...] | StepscopeError],
    done: Callable[[Path], None],
) -> list[Sequence[Path]]:
    """Add what the batches hold to ``outcomes`` and return those that ended too many workers."""
    from distributed import KilledWorker

    lost: list[Sequence[Path]] = []
    pending = {client.submit(_pass_each, work, batch, __version__, pure=False): batch for batch in batches}
    try:
        while pending:
            for future in _finished_futures(client, list(pending), read=len(outcomes)):
                batch = pending.pop(future)
                error = future.exception()
                if isinstance(error, KilledWorker):
                    lost.append(batch)
                    continue
                if isinstance(error, ImportError):
                    raise MissingError("the cluster's workers have no stepscope", why=str(error), fix=_SAME) from error
                outcomes.update(zip(batch, future.result(), strict=True))
                future.release()
                for file in batch:
                    done(file)
    finally:
        client.cancel(list(pending), force=True)
    return lost


def _pass_each(
    work: Callable[[Path], tuple[RankPass, ...]], files: Sequence[Path], version: str
) -> list[tuple[RankPass, ...] | StepscopeError]:
    """Analyse the files on a worker, for a command of this version. Raises MissingError where the worker has another one."""
    if version != __version__:
        raise MissingError(
            "a worker of the cluster has another stepscope", why=f"it has {__version__}, this is {version}", fix=_SAME
        )
    from stepscope.traces.rank_pass import outcome_of

    return [outcome_of(work, file) for file in files]


def _finished_futures(client: Client, pending: Sequence[Future], *, read: int) -> Collection[Future]:
    """Return finished futures as soon as there are any. Raises MissingError where nobody is left to finish them."""
    from distributed import wait

    alone_since = None
    while True:
        try:
            return cast("Collection[Future]", wait(pending, timeout=LOOK_S, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            now = time.monotonic()
            alone_since = None if client.scheduler_info()["workers"] else alone_since or now
            if alone_since is not None and now - alone_since > ALONE_S:
                raise MissingError(
                    f"the cluster has no worker left; {counted(read, 'file')} had been read",
                    why=f"its workers ended, and for {ALONE_S:.0f} s no other came",
                    fix="look at the workers' logs: memory, walltime, a lost node; then run the command again",
                ) from None
        except CancelledError as error:
            raise MissingError(
                f"the connection to the scheduler is lost; {counted(read, 'file')} had been read",
                why="the scheduler ended, or the network to it is down",
                fix="start it again, then run the command again",
            ) from error


def _killed_workers_error(file: Path) -> NotReadError:
    return NotReadError(
        f"{file}: not read",
        why="the processes that read it were killed each time: a worker's memory may be too small for it",
        fix="give workers more memory, or read device events alone (--show budget)",
    )


@contextmanager
def _connected_client(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Yield a client of the scheduler; of a cluster on this machine where none is named. Raises MissingError where none
    answers."""
    from distributed import Client, LocalCluster

    if scheduler is None:
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster) as client,
        ):
            # Its own nannies give up a worker that is killed as soon as it has begun.
            cluster.adapt(minimum=workers, maximum=workers)
            yield client
        return
    host, _, port = scheduler.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection(
            (host, int(port)), timeout=CONNECT_S
        ).close()  # dask tries a closed port again and again
        client = Client(scheduler, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise MissingError(
            f"no dask scheduler answers at {scheduler.removeprefix('tcp://')}",
            why=str(error).partition("\n")[0],
            fix="`dask scheduler` prints the address it listens on; check host, port and firewall",
        ) from error
    with client:
        yield client


def _require_workers(client: Client) -> None:
    """Raise MissingError where no worker comes in time."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        raise MissingError(
            "the scheduler has no workers",
            why=f"none came within {WORKERS_S:.0f} s",
            fix="start some: `dask worker HOST:PORT` on the nodes that see the traces",
        ) from error


@contextmanager
def _dask_silenced() -> Iterator[None]:
    """Silence dask's own messages: the caller says once what is lost and why."""
    import dask
    import distributed  # noqa: F401 - with its settings

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    environ = dask.config.get("distributed.nanny.pre-spawn-environ")
    settings = {
        "distributed.comm.timeouts.connect": CONNECT_S,
        "distributed.scheduler.allowed-failures": LOSSES,
        "distributed.admin.tick.limit": "1h",
        # Of our own workers. Dask's MALLOC_TRIM_THRESHOLD_ would have every block of text come from the system anew.
        "distributed.nanny.pre-spawn-environ": {k: v for k, v in environ.items() if k != "MALLOC_TRIM_THRESHOLD_"},
        "distributed.worker.profile.enabled": False,
    }
    try:
        with dask.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
