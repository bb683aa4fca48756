from __future__ import annotations

from dataclasses import replace

from tests.comm_rows import MIB, collective

from stepscope.diagnose.rules.busbw_drop import RULE
from stepscope.records.comm import CommRow
from stepscope.records.finding import Quiet, Skipped
from stepscope.results.evidence import Evidence


def rows(last_us: float, **shape: str) -> list[CommRow]:
    return [collective(size, us, **shape) for size, us in ((MIB, 500.0), (4 * MIB, 1500.0), (16 * MIB, last_us))]


def check(shown: list[CommRow]):
    return RULE.check(Evidence(sources=(), comm=tuple(shown)))


def test_a_drop_is_named_with_both_sizes_and_both_rates() -> None:
    (found,) = check(rows(12_000.0, backend="nccl", device="cuda"))
    assert found.title == "all_reduce on 2 ranks: busbw is 50% lower at 16 MiB than at 4 MiB"
    assert found.evidence == ("2.80 GB/s at 4 MiB, 1.40 GB/s at 16 MiB",)
    assert found.severity == "warning"
    assert found.advice[0].command == f"stepscope comm --ops all_reduce --sizes {4 * MIB}:{16 * MIB}:2"


def test_on_the_cpu_it_is_ordinary_and_says_why() -> None:
    (found,) = check(rows(12_000.0))
    assert found.severity == "info"
    assert "caches" in found.evidence[-1]


def test_a_drop_within_the_noise_is_quiet() -> None:
    shown = rows(7000.0)
    shown[-1] = replace(shown[-1], time_ns_low=0.8 * 7e6)
    assert isinstance(check(shown), Quiet)
    shown[-1] = replace(shown[-1], time_ns_low=None)
    assert isinstance(check(shown), Skipped)


def means(*last_us: float) -> list[CommRow]:
    """As tables of other tools have them: no median, no interval."""
    without = {"time_ns_median": None, "time_ns_low": None, "time_ns_high": None, "backend": "nccl", "device": "cuda"}
    sizes = ((MIB, 500.0), (4 * MIB, 1500.0), *((16 * MIB << i, us) for i, us in enumerate(last_us)))
    return [
        replace(
            collective(size, us),
            **without,
            time_ns_mean=us * 1e3,
            in_place=form,
            cell_id=f"t, {'in' if form else 'out of'} place",
        )
        for form in (False, True)
        for size, us in sizes
    ]


def test_a_large_drop_of_means_without_intervals_is_one_finding_of_both_forms() -> None:
    (found,) = check(means(24_000.0, 49_000.0, 98_000.0))
    assert "lower at 64 MiB than at 4 MiB" in found.title
    assert any(line.startswith("from 16 MiB on") for line in found.evidence)
    assert any("in place" in line for line in found.evidence)
    assert "without an interval" in found.confidence


def test_a_small_drop_of_means_cannot_be_told_from_noise() -> None:
    assert isinstance(check(means(7_200.0)), Skipped)
    assert isinstance(check(means(6_200.0)), Quiet)


def test_the_burst_of_an_emulated_link_is_no_rate_to_drop_from() -> None:
    """256 KiB pass at 131% of 250 MB/s; beyond the burst the link's own rate is reached."""
    sizes = ((256 * 1024, 800.0), (MIB, 4400.0), (4 * MIB, 17_100.0), (16 * MIB, 68_000.0))
    peak = {"link_peak_bytes_per_s": 250e6, "hosts": 2}
    assert isinstance(check([collective(size, us, **peak, network="2gbit:2") for size, us in sizes]), Quiet)
    assert isinstance(check([collective(size, us) for size, us in sizes]), tuple)
