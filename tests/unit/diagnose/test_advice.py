"""What a verdict advises, by what the job recorded: what applies, what is on already, and who takes the processors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.diaries import write_diary, write_facts, write_load

from stepscope.diagnose.advice import GENERAL, advice_for
from stepscope.diagnose.advised import ADVICE, STRICT, Condition
from stepscope.diagnose.costs import causes_of
from stepscope.diagnose.frameworks import OPTIONS
from stepscope.diagnose.job_facts import HOLDS, JobFacts, applies, facts_of_profiled
from stepscope.diagnose.rule import advise
from stepscope.diagnose.verdict import judge
from stepscope.records.finding import Diagnosis, JobVerdict, VerdictKind
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.results.open import load_evidence
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job

NOTHING = Diagnosis(findings=(), skipped=(), quiet=())
CPU = {
    "optimizer": {"class": "AdamW", "devices": ["cpu"], "options": {"fused": None}},
    "distributed": {"backend": "gloo"},
}
GPU = {
    "optimizer": {"class": "AdamW", "devices": ["cuda"], "options": {"fused": None}},
    "distributed": {"backend": "nccl"},
}
NEVER_ON_CPUS = r"pin_memory|on the device|GPU|NCCL|nccl|cuda|TF32|autocast"


def job(
    folder: Path, parts: Mapping[str, float], facts: Mapping[str, Any], *,
    ranks: int = 2, threads: int = 1, load: Mapping[str, float] | None = None, delay: float = 0.0,
) -> tuple[JobVerdict, ProfiledJob]:  # fmt: skip
    """The verdict on ranks of one host of two cores with these parts of a step, ms."""
    for rank in range(ranks):
        write_diary(
            folder, {name: [ms] * 80 for name, ms in parts.items()}, rank=rank, world_size=ranks, delay=delay,
            threads=threads, cores=2,
        )  # fmt: skip
        if load is not None:
            write_load(folder, rank=rank, steps=80, **load)
    machine = {"cores": 2, "threads": threads}
    write_facts(folder, {"machine": machine, **facts}, world_size=ranks)
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (folder / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    found = judge(load_evidence([folder]), NOTHING)
    read = read_profiled_job(folder)
    assert found is not None
    assert read is not None
    return found.verdict, read


def advised(verdict: JobVerdict) -> str:
    return "\n".join(f"{each.text} {each.command or ''}" for each in verdict.advice)


def general(kind: VerdictKind, of: ProfiledJob) -> str:
    verdict = JobVerdict(kind=kind, confidence="", headline="")
    assert of.steps is not None
    return "\n".join(each.text for each in advice_for(verdict, causes_of(of, of.steps, NOTHING, None)))


def loaders(**known: Any) -> dict[str, Any]:
    one = {"num_workers": 0, "persistent_workers": False, "pin_memory": False, "iterable": False, **known}
    return {"loaders": {"count": 1, "first": one, "all": [one], "iterating": [one]}}


WAITS = {"data": 10.0, "forward": 8.0, "cpu": 8.0}
BUSY = {"busy_s": 1.96, "process_s": 0.98, "data_s": 0.55, "data_cpu_s": 0.54}
SLEEPS = {"busy_s": 0.95, "process_s": 0.47, "data_s": 0.55, "data_cpu_s": 0.02}


@pytest.mark.parametrize(("load", "workers"), [(BUSY, None), (SLEEPS, 2), (None, None)])
def test_workers_only_where_they_shorten_the_step(tmp_path: Path, load: Any, workers: int | None) -> None:
    """Two ranks with a thread each fill two cores: workers made three such scripts slower."""
    verdict, _ = job(tmp_path, WAITS, CPU | loaders(), load=load)
    said = re.search(r"num_workers=(\d+)", advised(verdict))
    assert verdict.kind == "input-bound"
    assert (int(said[1]) if said else None) == workers
    assert ("cheaper" in advised(verdict)) == (workers is None)
    assert not re.search(NEVER_ON_CPUS, advised(verdict))


def test_the_stake_is_what_workers_can_hide(tmp_path: Path) -> None:
    """13.5 ms of CPU time a step of 18 ms: not shorter than that, though 10 ms are waits."""
    most, _ = job(tmp_path / "few", WAITS, CPU | loaders(), load={**BUSY, "busy_s": 1.5, "process_s": 0.75})
    assert most.stake_fraction == pytest.approx(0.25, abs=0.01)
    every, _ = job(tmp_path / "none", WAITS, CPU | loaders(), load=BUSY)
    assert every.stake_fraction == pytest.approx(10 / 18, rel=0.01)


def test_workers_that_are_there_are_not_advised(tmp_path: Path) -> None:
    busy = {"busy_s": 1.96, "process_s": 0.4, "workers_s": 0.58, "data_s": 0.5, "data_cpu_s": 0.01}
    verdict, _ = job(tmp_path, WAITS, CPU | loaders(num_workers=1), load=busy)
    assert "num_workers" not in advised(verdict)


def test_a_validation_loader_says_nothing_of_that_of_training(tmp_path: Path) -> None:
    of = loaders(num_workers=2, persistent_workers=True)
    of["loaders"]["all"] = [*of["loaders"]["all"], {"num_workers": 0}]
    _, read = job(tmp_path, WAITS, CPU | of)
    assert (read.loader_workers, read.loads_ahead) == (2, True)
    assert facts_of_profiled(read).loader == LoaderSetup(
        workers=2, pinned=False, persistent=True, prefetch=None, divided=None, streamed=False
    )


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"iterable": True}, "get_worker_info"),
        ({"persistent_workers": True}, "num_workers=2)"),
        ({}, "persistent_workers=True"),
    ],
)
def test_what_else_workers_need_is_said(tmp_path: Path, known: Any, words: str) -> None:
    verdict, _ = job(tmp_path, WAITS, CPU | loaders(**known), load=SLEEPS)
    assert words in advised(verdict)


def test_a_started_interpreter_needs_a_guard(tmp_path: Path) -> None:
    settings = {"settings": {"start_method": "spawn"}}
    verdict, _ = job(tmp_path, WAITS, CPU | loaders() | settings, load=SLEEPS)
    assert "__main__" in advised(verdict)


TWO_THREADS = {"forward": 18.0, "cpu": 8.0}


@pytest.mark.parametrize(
    ("threads", "variables", "load", "words"),
    [
        (1, {"OMP_NUM_THREADS": "1"}, {"busy_s": 2.0, "process_s": 0.5}, r"other processes take 1\.0 of 2 cores"),
        (1, {"OMP_NUM_THREADS": "1"}, {"busy_s": 2.0, "process_s": 0.6, "stepscope_s": 0.7}, r"stepscope takes 0\.7 of 2"),
        (1, {}, {"busy_s": 2.0, "process_s": 0.55, "workers_s": 0.45}, "make loading cheaper: its workers"),
        (2, {}, {"busy_s": 2.0, "process_s": 1.0}, "^OMP_NUM_THREADS=1: 2 ranks x 2 threads on 2 cores"),
        (2, {"OMP_NUM_THREADS": "2"}, None, "^OMP_NUM_THREADS=1"),
        (2, {"OMP_NUM_THREADS": "1"}, None, r"^torch.set_num_threads\(1\)"),
        (1, {"OMP_NUM_THREADS": "1"}, None, "^see what else runs"),
        (1, {"OMP_NUM_THREADS": "1"}, {"busy_s": 2.0, "process_s": 1.0}, "^see what else runs"),
    ],
)  # fmt: skip
def test_contention_is_advised_by_who_takes_the_processors(
    tmp_path: Path, threads: int, variables: Mapping[str, str], load: Any, words: str
) -> None:
    facts = CPU | {"settings": {"gc": True}, "environment": dict(variables)}
    verdict, _ = job(tmp_path, TWO_THREADS, facts, threads=threads, load=load, delay=0.4)
    assert verdict.kind == "contended-machine"
    assert re.search(words, advised(verdict))
    for name, value in variables.items():
        assert f"{name}={value}" not in advised(verdict), "it is set already"


def test_more_ranks_than_cores_are_no_matter_of_threads(tmp_path: Path) -> None:
    verdict, _ = job(tmp_path, TWO_THREADS, CPU, ranks=4, delay=0.4)
    assert "no more ranks" in advised(verdict)


@pytest.mark.parametrize(
    ("kind", "facts", "never", "instead"),
    [
        ("optimizer-bound", {"optimizer": {**CPU["optimizer"], "options": {"fused": True}}}, "fused", "see what"),
        ("optimizer-bound", {"optimizer": {"class": "Muon", "devices": ["cpu"], "options": {}}}, "fused", "see what"),
        ("optimizer-bound", CPU, "accumulate", r"AdamW\(..., fused=True\)"),
        ("garbage-collection", CPU | {"settings": {"gc": True, "gc_frozen": 9}}, "freeze", r"gc.disable\(\)"),
        ("garbage-collection", CPU | {"settings": {"gc": False, "gc_frozen": 0}}, r"disable|freeze", "gc.collect"),
        ("garbage-collection", CPU | {"settings": {"gc": True, "gc_frozen": 0}}, "^$", "freeze"),
        ("checkpointing", CPU, "cuda", "async_save"),
        ("checkpointing", GPU, "^$", "cpu:gloo,cuda:nccl"),
        ("compute-bound", CPU, NEVER_ON_CPUS + "|precision|compile", "operators"),
        ("compute-bound", GPU, "^$", "set_float32_matmul_precision"),
        ("compute-bound", GPU | {"settings": {"matmul_precision": "high"}}, "set_float32", "torch.compile"),
        ("compute-bound", GPU | {"settings": {"matmul_precision": "high"}, "compiled": {"modules": 1}},
         "set_float32|compile", "operators"),
    ],
)  # fmt: skip
def test_what_is_on_or_has_no_meaning_there_is_not_advised(
    tmp_path: Path, kind: VerdictKind, facts: Mapping[str, Any], never: str, instead: str
) -> None:
    _, read = job(tmp_path, {"forward": 10.0, "cpu": 10.0}, facts)
    said = general(kind, read)
    assert not re.search(never, said)
    assert re.search(instead, said)


@pytest.mark.parametrize("kind", sorted(GENERAL))
def test_no_job_on_cpus_hears_of_devices(tmp_path: Path, kind: VerdictKind) -> None:
    _, read = job(tmp_path, WAITS, CPU | loaders())
    assert not re.search(NEVER_ON_CPUS, general(kind, read))


def test_every_kind_that_has_a_general_advice_is_one() -> None:
    assert set(GENERAL) - {"worker-start"} <= set(get_args(VerdictKind))


@pytest.mark.parametrize(
    ("frameworks", "words"),
    [
        ((), "DataLoader(..., persistent_workers=True)"),
        (("lightning",), "DataLoader(..., persistent_workers=True)"),
        (("accelerate", "ddp"), "DataLoader(..., persistent_workers=True)"),
        (("transformers",), "TrainingArguments(dataloader_persistent_workers=True)"),
    ],
)
def test_worker_processes_of_each_epoch_are_kept(frameworks: Sequence[str], words: str) -> None:
    facts = JobFacts(frameworks=frozenset(frameworks), loader=LoaderSetup(workers=2, persistent=False))
    general: Any = GENERAL["worker-start"]
    (keep,) = general(None, facts)
    assert words in keep.text
    assert applies(keep, facts)
    assert not applies(keep, JobFacts(loader=LoaderSetup(workers=2, persistent=True)))


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("fused optimizer", JobFacts(setup=JobSetup(fused=True))),
        ("keep gathered", JobFacts(setup=JobSetup(resharded=False))),
        ("freeze garbage", JobFacts(setup=JobSetup(frozen=100))),
        ("tf32", JobFacts(device="cuda", setup=JobSetup(matmul_precision="high"))),
        ("compile", JobFacts(compiled=True)),
        ("compile", JobFacts(device="cpu", setup=JobSetup(compiler=False))),
        ("keep workers", JobFacts(loader=LoaderSetup(workers=2, persistent=True))),
        ("pin batches", JobFacts(device="cuda", loader=LoaderSetup(pinned=True))),
        ("pin batches", JobFacts(device="cpu", loader=LoaderSetup(pinned=False))),
        ("loader workers", JobFacts(device="cpu", cores=2, threads=1, ranks_a_host=2, loader=LoaderSetup(workers=0))),
    ],
)
def test_advice_that_is_on_is_never_given(key: str, facts: JobFacts) -> None:
    assert not applies(advise("-", key=key), facts)
    assert applies(advise("-", key=key), JobFacts())


def test_each_condition_is_decided_and_each_topic_has_a_key() -> None:
    assert set(HOLDS) == set(get_args(Condition))
    assert {condition for needs in ADVICE.values() for condition in needs} <= set(HOLDS)
    assert set(OPTIONS) <= set(ADVICE)
    assert set(HOLDS) >= STRICT
