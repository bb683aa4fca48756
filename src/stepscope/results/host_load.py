"""Who used the processors while the timed steps ran: the ranks and their workers, the command of stepscope, others; and
what loading takes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.predict.loading import Loading, fewest_workers, hidden_share
from stepscope.results.diary import JobSteps, crowd
from stepscope.store.diary import RankDiary

LEAST_S = 0.5
"""Seconds of samples at least: the counters of processors advance by hundredths of a second."""

WORTH_CORES, WORTH_OF_CORES = 0.25, 0.05
"""Processors, and share of them, that somebody takes at least, so that it is named: kernel threads and the launcher take
0.02 to 0.1 of 2 (2026-11)."""


@record
class HostLoad:
    """Mean number of busy processors, of those that these ranks may use. busy: by anybody; own: by the ranks and their
    workers, workers: of it; stepscope: by its command. None: not known. seconds: of samples.
    """

    host: str
    ranks: tuple[int, ...]
    cores: int
    seconds: float
    busy: float
    own: float
    workers: float
    stepscope: float | None = None

    @property
    def others(self) -> float:
        """Processors that neither the job nor stepscope uses."""
        return max(0.0, self.busy - self.own - (self.stepscope or 0.0))

    @property
    def least(self) -> float:
        """Processors from which on a user of them is named."""
        return max(WORTH_CORES, WORTH_OF_CORES * self.cores)

    @property
    def free(self) -> float:
        return max(0.0, self.cores - self.busy)


@lru_cache(maxsize=2)
def host_loads(steps: JobSteps) -> tuple[HostLoad, ...]:
    """Return the load of each set of processors that ranks share, the one with the fewest free first. Hosts on which a rank
    was not sampled are left out: its processes would count as others."""
    unknown = {diary.header.host for diary in steps.diaries if diary.load is None or not diary.load.header.load}
    sampled = [diary for diary in steps.diaries if diary.header.host not in unknown]
    shared = grouped(sampled, lambda diary: (diary.header.host, diary.load.header.load[0].cpus if diary.load else ()))
    loads = [load for (host, cpus), ranks in shared.items() if (load := _host_load(steps, host, len(cpus), ranks))]
    return tuple(sorted(loads, key=lambda host_load: host_load.free))


def taken_by_others(steps: JobSteps) -> float:
    """Return the share of a host's processors that processes outside the job use, the most of any host; 0 where they use too
    little to be named, or it is not known."""
    shares = [load.others / load.cores for load in host_loads(steps) if load.others >= load.least]
    return max(shares, default=0.0)


def _host_load(steps: JobSteps, host: str, cores: int, ranks: Sequence[RankDiary]) -> HostLoad | None:
    """Return who uses the cores of one host, in cores; None where a rank's samples lack it."""
    rates = [rate for rank in ranks if (rate := _seconds_per_second(steps, rank))]
    if len(rates) < len(ranks) or not cores:
        return None
    stepscope = [rate["stepscope_s"] for rate in rates if np.isfinite(rate["stepscope_s"])]
    busy = float(np.mean([rate["busy_s"] for rate in rates]))
    if not np.isfinite(busy):
        return None
    workers = sum(rate["workers_s"] for rate in rates)
    return HostLoad(
        host=host,
        ranks=tuple(rank.rank for rank in ranks),
        cores=cores,
        seconds=min(rate["seconds"] for rate in rates),
        busy=min(busy, cores),
        own=sum(rate["process_s"] for rate in rates) + workers,
        workers=workers,
        stepscope=float(np.mean(stepscope)) if stepscope else None,
    )


def _seconds_per_second(steps: JobSteps, diary: RankDiary) -> dict[str, float] | None:
    """Return for each column the seconds in a second of the samples that lie in timed steps; of all samples where too few
    do."""
    load = diary.load
    if load is None or load.unix_s.size < 2:
        return None
    spans = np.diff(load.unix_s)
    timed = _between_timed(steps, load.step)
    chosen = timed if spans[timed].sum() >= LEAST_S else np.ones_like(timed)
    seconds = float(spans[chosen].sum())
    if seconds < LEAST_S:
        return None
    columns = {name: values[1:, 0].astype(float)[chosen] for name, values in load.columns.items()}
    return {"seconds": seconds, **{name: float(values.sum()) / seconds for name, values in columns.items()}}


def _between_timed(steps: JobSteps, at: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether all steps from one sample to the next are timed [samples - 1]; there must be one at least."""
    numbers = np.concatenate([[0], np.cumsum(np.isin(np.arange(1, steps.all_steps + 1), steps.numbers))])
    ends = np.minimum(at, steps.all_steps).astype(int)
    passed, of_timed = np.diff(ends), np.diff(numbers[ends])
    return np.asarray((passed > 0) & (of_timed == passed))


COMPUTES = 0.5
"""Share of CPU time in loading from which on it computes: below, it mostly sleeps or reads."""


def loading_of(steps: JobSteps, *, workers: int = 0) -> Loading | None:
    """Return the loading of a mean rank; None where nobody waits for data.

    Of processors that other processes use, loading that computes is given none; loading that mostly sleeps is given one when
    it wakes, as any of two that share it.
    """
    data = np.nan_to_num(steps.parts_ns["data"])
    if not data.any():
        return None
    step_ns = float(steps.whole_ns.mean())
    loads = host_loads(steps)
    used = cores = None
    if loads:
        load = loads[0]
        used = load.own / len(load.ranks) * step_ns
        computes = computing_share(steps, workers=workers)
        taken = load.others if computes is None or computes >= COMPUTES else load.others / 2
        cores = max(0.0, load.cores - taken) / len(load.ranks)
    return Loading(step_ns=step_ns, wait_ns=float(data.mean()), workers=workers, used_ns=used, cores=cores)


def computing_share(steps: JobSteps, *, workers: int = 0) -> float | None:
    """Return the share of CPU time in the time in which batches are made: of the training thread in its waits for data, or
    of the workers where these load, which are never idle while ranks wait for them. None: not recorded."""
    if workers:
        loads = host_loads(steps)
        return min(1.0, loads[0].workers / (len(loads[0].ranks) * workers)) if loads else None
    waited = used = 0.0
    for diary in steps.diaries:
        if diary.load is not None and "data_s" in diary.load.columns:
            waited += float(np.nansum(diary.load.columns["data_s"]))
            used += float(np.nansum(diary.load.columns["data_cpu_s"]))
    return min(1.0, used / waited) if waited > 0 else None


def loader_stake(steps: JobSteps, *, workers: int = 0, share: float) -> float:
    """Return the share of the step that is saved where ranks wait ``share`` of it for data: what worker processes can hide,
    where these are what helps; else all of it, as loading that costs nothing would return."""
    loading = loading_of(steps, workers=workers)
    wanted = fewest_workers(loading) if loading is not None else None
    return share if loading is None or wanted is None else min(share, hidden_share(loading, wanted))


def crowding_ns(steps: JobSteps, *, on_cpu: bool) -> float:
    """Return the mean ns of a step in which ranks wait for a core that threads of their communication (gloo's) have: it goes
    with the communication. 0 where ranks have more threads than cores, or other processes take cores: then ranks wait for
    those."""
    if not on_cpu or crowd(steps) is not None or any(contender.who == "others" for contender in contention_of(steps)):
        return 0.0
    return float(np.nan_to_num(steps.delay_ns).mean())


Contender = Literal["others", "threads", "workers", "stepscope"]


@record
class Contention:
    """Somebody who takes processors of the ranks. who: other processes, the ranks' own threads (more than processors),
    workers of their loaders, the command of stepscope. takes: processors; of the ranks' threads, those beyond ``cores``.
    """

    who: Contender
    takes: float
    cores: int
    host: str


def contention(
    load: HostLoad | None, *, ranks: int = 1, threads: int | None = None, cores: int | None = None, host: str = ""
) -> tuple[Contention, ...]:
    """Return who takes processors that ranks want, most first; empty where nobody is seen to.

    ranks, threads: of one operator on each of them, cores: of that host, where they are recorded; load: None: not sampled.
    """
    contenders = []
    if threads is not None and cores and ranks * threads > cores:
        contenders.append(Contention(who="threads", takes=float(ranks * threads - cores), cores=cores, host=host))
    if load is not None:
        seen: tuple[tuple[Contender, float], ...] = (("others", load.others), ("stepscope", load.stepscope or 0.0))
        contenders += [
            Contention(who=who, takes=n, cores=load.cores, host=load.host) for who, n in seen if n >= load.least
        ]
        full = load.own + load.least > load.cores
        if load.workers >= load.least and full and not any(contender.who == "threads" for contender in contenders):
            contenders.append(Contention(who="workers", takes=load.workers, cores=load.cores, host=load.host))
    return tuple(sorted(contenders, key=lambda contender: -contender.takes))


def contention_of(steps: JobSteps) -> tuple[Contention, ...]:
    """Return the contention of the host on which most is taken from the ranks."""
    loads = {host_load.host: host_load for host_load in reversed(host_loads(steps))}
    by_host = []
    for host, ranks in grouped(steps.diaries, lambda diary: diary.header.host).items():
        threads = [rank.header.threads for rank in ranks if rank.header.threads]
        cores = min((rank.header.cores for rank in ranks if rank.header.cores), default=None)
        by_host.append(
            contention(
                loads.get(host),
                ranks=len(ranks),
                threads=max(threads) if len(threads) == len(ranks) else None,
                cores=cores,
                host=host,
            )
        )
    return max(by_host, key=lambda contenders: sum(one.takes for one in contenders), default=())
