"""Output of nccl-tests: what each layout says, and what must not be guessed."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from tests.nccl_tests_log import devices, log, row

from stepscope.core.errors import DataError, UsageError
from stepscope.records.imported import Imported, Stated
from stepscope.store.importers import detect, read_foreign
from stepscope.store.importers.nccl_tests import IMPORTER

SIZES = [(1 << 10, 13.0), (1 << 20, 27.37), (64 << 20, 324.7), (1 << 30, 4029.4)]


def read(folder: Path, text: str, *, name: str = "run.log", stated: Stated | None = None) -> Imported:
    path = folder / name
    path.write_text(text)
    return IMPORTER.read(path, stated or Stated())


def test_every_size_has_a_row_in_and_out_of_place(tmp_path: Path) -> None:
    found = read(tmp_path, log(SIZES))
    assert [(r.size_bytes, r.in_place) for r in found.comm_rows] == [
        *((size, False) for size, _ in SIZES),
        *((size, True) for size, _ in SIZES),
    ]
    first = found.comm_rows[1]
    assert (first.op, first.dtype, first.reduce_op, first.root) == ("all_reduce", "float32", "sum", 0)
    assert (first.world_size, first.hosts, first.iterations, first.warmup) == (8, 1, 20, 5)
    assert first.correct is True
    assert found.hardware == "8 x NVIDIA H100 80GB HBM3"
    (remark,) = found.remarks
    assert remark.startswith("nccl-tests: times are means")
    assert found.notes == ()


def test_its_time_is_a_mean_and_no_median(tmp_path: Path) -> None:
    row = read(tmp_path, log(SIZES)).comm_rows[1]
    assert row.time_ns_mean == pytest.approx(27_370)
    assert row.time_ns_median is None
    assert row.time_ns == row.time_ns_mean
    assert row.pacing == "back_to_back"
    assert any("mean" in note for note in row.notes)


def test_sizes_that_became_empty_are_left_out_and_said_but_count_in_its_average(tmp_path: Path) -> None:
    zero = row(4, 1e9, op="all_reduce", ranks=8).replace("           4             1", "           0             0")
    lines = log(SIZES, average=None).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("1024"))
    rates = [float(line.split()[7]) for line in lines[at : at + 4]]
    for rows, right in ((5, True), (4, False)):
        average = f"# Avg bus bandwidth    : {sum(rates) / rows:g}"
        found = read(tmp_path, "\n".join([*lines[:at], zero, *lines[at:], average, ""]))
        assert 0 not in {r.size_bytes for r in found.comm_rows}
        assert any("1 row of 0 bytes left out" in note for note in found.notes)
        assert any("average bus bandwidth" in note for note in found.notes) is not right


def test_another_average_than_that_of_its_rows_is_said(tmp_path: Path) -> None:
    (note,) = read(tmp_path, log(SIZES, average="250.1")).notes
    assert "its average bus bandwidth is 250.1 GB/s and that of the rows read" in note


@pytest.mark.parametrize(("old", "printed", "bounds"), [(False, "12", 0), (True, "3e+01", 7), (True, "2e-01*", 0)])
def test_wrong_results_are_wrong(tmp_path: Path, old: bool, printed: str, bounds: int) -> None:
    found = read(tmp_path, log(SIZES, wrong=printed, old=old, bounds=bounds))
    assert {(r.correct, r.status) for r in found.comm_rows} == {(False, "error")}
    assert all(r.error is not None and r.error.startswith("wrong result") for r in found.comm_rows)


def test_a_deviation_within_bounds_is_right(tmp_path: Path) -> None:
    assert {r.correct for r in read(tmp_path, log(SIZES, wrong="5e-07", old=True)).comm_rows} == {True}


def test_without_a_list_of_devices_the_bandwidths_give_the_ranks_where_they_can(tmp_path: Path) -> None:
    found = read(tmp_path, log(SIZES, ranks=16, listed=False))
    assert {(r.world_size, r.hosts) for r in found.comm_rows} == {(16, None)}
    assert any(
        "no list of devices: 16 ranks, because busbw / algbw of all_reduce is 1.875" in note for note in found.notes
    )


def test_where_they_cannot_the_user_is_asked(tmp_path: Path) -> None:
    text = log(SIZES, op="broadcast", listed=False)
    with pytest.raises(UsageError, match="the number of ranks is unknown") as caught:
        read(tmp_path, text)
    assert caught.value.fix == "--world-size run.log=N"
    told = read(tmp_path, text, stated=Stated(world_size={"run": 6}))
    assert {r.world_size for r in told.comm_rows} == {6}


def test_what_is_stated_must_not_contradict_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="list of devices has 8 ranks, but --world-size states 4"):
        read(tmp_path, log(SIZES), stated=Stated(world_size={"run": 4}))


def test_a_folder_names_every_log_that_lacks_a_fact(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(log(SIZES, op="broadcast", listed=False))
    (tmp_path / "c.log").write_text(log(SIZES))
    with pytest.raises(UsageError) as caught:
        IMPORTER.read(tmp_path, Stated())
    assert "a.log" in caught.value.what
    assert "b.log" in caught.value.what
    assert "--world-size b.log=N" in (caught.value.fix or "")


def test_the_collective_is_not_guessed(tmp_path: Path) -> None:
    """2(n-1)/n is all_reduce alone; (n-1)/n without a reduction is all_gather or all_to_all."""
    assert read(tmp_path, log(SIZES, started=False)).comm_rows[0].op == "all_reduce"
    with pytest.raises(DataError, match="the collective is unknown"):
        read(tmp_path, log(SIZES, op="all_gather", started=False))
    with pytest.raises(DataError, match="its name says all_gather, which does not fit"):
        read(tmp_path, log(SIZES, started=False), name="all_gather.log")


def test_torn_rows_are_left_out_and_said(tmp_path: Path) -> None:
    lines = log(SIZES).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("67108864"))
    lines[at] = lines[at][:70]
    found = read(tmp_path, "\n".join(lines))
    assert len(found.comm_rows) == 2 * (len(SIZES) - 1)
    assert any(f"1 damaged row left out (line {at + 1})" in note for note in found.notes)
    assert any("rows are missing, or were changed" in note for note in found.notes)


def test_a_log_cut_off_in_the_last_row_keeps_the_rows_before(tmp_path: Path) -> None:
    text = log(SIZES)
    cut = text[: text.index("1073741824") + 60]
    assert len(read(tmp_path, cut).comm_rows) == 2 * (len(SIZES) - 1)


@pytest.mark.parametrize(
    ("old", "new"), [("  206.68", "  306.68"), ("     262144 ", "     262145 "), ("1048576        ", "91048576       ")]
)
def test_a_row_that_contradicts_itself_is_left_out(tmp_path: Path, old: str, new: str) -> None:
    """An edited rate, or two torn rows that look like one: which of its figures is wrong, the row does not say."""
    text = log(SIZES, average=None).replace(old, new, 1)
    assert text != log(SIZES, average=None)
    found = read(tmp_path, text)
    assert len(found.comm_rows) == 2 * (len(SIZES) - 1)
    assert {row.size_bytes for row in found.comm_rows} < {size for size, _ in SIZES}
    assert any("1 damaged row" in note for note in found.notes)


def test_a_last_row_without_its_end_is_left_out(tmp_path: Path) -> None:
    """Its last word may be cut off: of a broadcast from rank 3, what is left then looks like another row."""
    text = log(SIZES, op="broadcast").replace("none      -1", "none       3")
    end = text.index("# Out of bounds")
    for cut in range(1, 12):
        found = read(tmp_path, text[: end - cut])
        assert {row.size_bytes for row in found.comm_rows} == {size for size, _ in SIZES[:-1]}


@pytest.mark.parametrize(("end", "ended"), [("# Out of", False), ("# Avg bus", True), ("#\n", True)])
def test_a_table_without_its_summary_is_said(tmp_path: Path, end: str, ended: bool) -> None:
    text = log(SIZES)
    text = text if end == "#\n" else text[: text.index(end)]
    found = read(tmp_path, text)
    assert len(found.comm_rows) == 2 * len(SIZES)
    stops = [note for note in found.notes if "summary" in note]
    assert bool(stops) is not ended
    assert ended or f"ends at {SIZES[-1][0]} bytes of 8589934592" in stops[0]


@pytest.mark.parametrize("lost", ["last", "cut", "two in one"])
def test_a_torn_list_of_devices_does_not_count_the_ranks(tmp_path: Path, lost: str) -> None:
    """8 ranks, as the bandwidths say; its last lines are gone or damaged."""
    lines = log(SIZES).split("\n")
    at = next(i for i, line in enumerate(lines) if "Rank  7 " in line)
    if lost == "last":
        del lines[at]
    elif lost == "cut":
        lines[at] = lines[at][-12:]
    else:
        lines[at - 1 : at + 1] = [lines[at - 1][:40] + lines[at]]
    assert {row.world_size for row in read(tmp_path, "\n".join(lines)).comm_rows} == {8}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("(us)", "(ms)", "a table in ms"),
        ("(GB/s)", "(MB/s)", "a table in MB/s"),
        ("time   algbw   busbw", "time   busbw   algbw", "columns that nccl-tests does not print"),
    ],
)
def test_a_table_in_other_units_or_columns_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(tmp_path, log(SIZES).replace(old, new, 1))


def test_rows_of_another_number_of_ranks_are_left_out(tmp_path: Path) -> None:
    """Two jobs wrote into one file."""
    others = [row(size * 2, us * 2, op="all_reduce", ranks=4) for size, us in SIZES[2:]]
    text = log(SIZES, average=None).replace("# Out of", "\n".join([*others, "# Out of"]))
    found = read(tmp_path, text)
    assert {r.size_bytes for r in found.comm_rows} == {size for size, _ in SIZES}
    assert any("2 rows left out" in note for note in found.notes)


def test_a_job_that_ended_before_its_first_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no results of nccl-tests"):
        read(tmp_path, log([]))


def test_a_packed_log_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(log(SIZES).encode()))
    assert len(read_foreign(path).comm_rows) == 2 * len(SIZES)


def test_an_empty_file_is_no_importers(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("")
    assert detect(path) is None
    with pytest.raises(DataError, match="the file is empty"):
        read_foreign(path)


def test_the_builder_prints_what_nccl_tests_prints() -> None:
    figures = "27.37 38.31 67.04 0"
    printed = " ".join(row(1 << 20, 27.37, op="all_reduce", ranks=8).split())
    assert printed == f"1048576 262144 float sum -1 {figures} {figures}"


def test_a_stated_number_that_the_rates_contradict_is_told_with_both(tmp_path: Path) -> None:
    text = log(SIZES, ranks=16, listed=False, started=False)
    with pytest.raises(DataError) as caught:
        read(tmp_path, text, name="all_reduce.log", stated=Stated(world_size={"all_reduce": 8}))
    assert "busbw / algbw is 1.875, all_reduce on 8 ranks has 1.75" in (caught.value.why or "")


TALK = "node-0:1000:1000 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 4 datatype 7"


@pytest.mark.parametrize("at", [0, 5, 10, 40, 58, 70, 85, 100])
@pytest.mark.parametrize("said", [1, 3])
def test_rows_that_lines_of_nccl_run_through_are_put_together(at: int, said: int, tmp_path: Path) -> None:
    """NCCL's lines end in a newline; the row goes on after the last, wherever it was interrupted, inside a number too."""
    sound = log([(1 << 20, 27.37), (1 << 21, 40.11)])
    lines = []
    for line in sound.splitlines():
        if line.lstrip()[:1].isdigit():
            lines += [line[:at] + TALK, *[TALK] * (said - 1), line[at:]]
        else:
            lines.append(line)
    path = tmp_path / "all_reduce.log"
    path.write_text(sound)
    whole = read_foreign(path).comm_rows
    path.write_text("\n".join(lines) + "\n")
    assert read_foreign(path).comm_rows == whole


def test_a_row_whose_end_never_comes_is_damaged(tmp_path: Path) -> None:
    text = log([(1 << 20, 27.37), (1 << 21, 40.11), (1 << 22, 80.0)])
    begin = text.index(f"{1 << 21:12}")
    cut = text[: begin + 60] + TALK + "\n" + text[text.index("\n", begin) + 1 :]
    path = tmp_path / "all_reduce.log"
    path.write_text(cut)
    found = read_foreign(path)
    assert {row.size_bytes for row in found.comm_rows} == {1 << 20, 1 << 22}
    assert any("1 damaged row" in note for note in found.notes)


@pytest.mark.parametrize(
    ("op", "middle"), [("broadcast", f"{0:7}"), ("reduce", f"{'sum':>7} {3:7}"), ("all_gather", "")]
)
def test_columns_of_the_old_programs(op: str, middle: str, tmp_path: Path) -> None:
    """Before 2.12 a broadcast had a column for its root and none for the reduction."""
    factor = 7 / 8 if op == "all_gather" else 1.0
    figures = f"{27.37:8} {(1 << 20) / 27.37 / 1e3:7.2f} {(1 << 20) / 27.37 / 1e3 * factor:7.2f}  0e+00"
    text = (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n"
        + "\n".join(devices(8))
        + f"\n#       size         count    type    {'root' if middle else ''}"
        + "     time   algbw   busbw  error     time   algbw   busbw  error\n"
        + f"{1 << 20:12} {1 << 18:13} {'float':>6} {middle} {figures} {figures}\n"
    )
    path = tmp_path / f"{op}.log"
    path.write_text(text)
    rows = read_foreign(path).comm_rows
    assert [(row.op, row.size_bytes, row.root) for row in rows] == [(op, 1 << 20, 3 if op == "reduce" else 0)] * 2


@pytest.mark.parametrize("size", ["9" * 60, "1" + "0" * 5000, str(1 << 60)])
def test_a_size_that_no_memory_has_is_damage(size: str, tmp_path: Path) -> None:
    text = log([(1 << 20, 27.37), (1 << 21, 40.11)]).replace(f"{1 << 21:12}", f" {size}")
    path = tmp_path / "all_reduce.log"
    path.write_text(text)
    found = read_foreign(path)
    assert {row.size_bytes for row in found.comm_rows} == {1 << 20}
    assert any("1 damaged row" in note for note in found.notes)


@pytest.mark.parametrize(
    ("title", "cells"),
    [("           timestamp", "  2025-11-03 10:22:08"), ("    i_min    i_cv%", "    23.47     3.20")],
    ids=["-S 1", "-I 1"],
)
def test_more_columns_than_the_usual_ones(title: str, cells: str, tmp_path: Path) -> None:
    plain = log(SIZES)
    between = "i_min" in title

    def longer(line: str) -> str:
        if "algbw" in line and "size" in line:
            figures = "    time   algbw   busbw #wrong"
            return line.replace(figures, figures + title) if between else line + title
        if line[:1] == " ":
            words = line.split()
            return "  ".join([*words[:9], *cells.split(), *words[9:], *cells.split()]) if between else line + cells
        return line

    more = "\n".join(map(longer, plain.splitlines())) + "\n"
    assert more != plain
    assert read(tmp_path, more).comm_rows == read(tmp_path, plain).comm_rows


def test_a_hosts_time_is_no_latency(tmp_path: Path) -> None:
    lines = [
        line.replace(f"{us:8.2f} ", "    6.50 ") if line[:1] == " " else line.replace("    time", " cputime")
        for line, us in ((line, float(line.split()[5]) if line[:1] == " " else 0.0) for line in log(SIZES).splitlines())
    ]
    found = read(tmp_path, "\n".join(lines) + "\n")
    assert [row.size_bytes for row in found.comm_rows if not row.in_place] == [size for size, _ in SIZES[1:]]
    assert found.comm_rows[0].time_ns_mean == pytest.approx(27_370, rel=1e-3)
    (note,) = found.notes
    assert "2 rows left out" in note


def test_a_collective_that_is_not_known_leaves_the_others_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "all_reduce.log").write_text(log(SIZES))
    (tmp_path / "hypercube.log").write_text(log(SIZES).replace("all_reduce_perf", "hypercube_perf"))
    found = IMPORTER.read(tmp_path, Stated())
    assert {row.op for row in found.comm_rows} == {"all_reduce"}
    (left,) = found.left_out
    assert "hypercube_perf is not a collective" in left.reason


def _json(*, listed: str = "all", time: str = "time") -> str:
    rows = []
    for size, us in SIZES:
        form = {time: us, "alg_bw": size / us / 1e3, "bus_bw": size / us / 1e3 * 1.75, "nwrong": 0.0}
        rows.append(
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": form,
             "in_place": form, "actual_iterations": 20, "experiment_name": "AllReduce"}
        )  # fmt: skip
    shown = {"all": range(8), "first": range(1)}[listed]
    named = [{"rank": r, "group": 0, "hostname": "n1", "device_info": "NVIDIA H100 80GB HBM3"} for r in shown]
    config = {
        "nthreads": 1,
        "ngpus": 8,
        "minimum_bytes": 8,
        "maximum_bytes": 1 << 30,
        "warmup_iters": 5,
        "iterations": 20,
    }
    document = {
        "version": 1,
        "args": ["./all_reduce_perf", "-J", "x"],
        "nccl_version": 22809,
        "config": {**config, "devices": named},
        "results": rows,
        "out_of_bounds": {"count": 0, "okay": True},
    }
    return json.dumps(document)


@pytest.mark.parametrize("listed", ["all", "first"])
def test_its_json_says_what_the_table_says(listed: str, tmp_path: Path) -> None:
    found = read(tmp_path, _json(listed=listed), name="run.json")
    table = read(tmp_path, log(SIZES))
    assert [(r.size_bytes, r.op, r.world_size, r.dtype, r.correct) for r in found.comm_rows] == [
        (r.size_bytes, r.op, r.world_size, r.dtype, r.correct) for r in table.comm_rows
    ]
    assert found.comm_rows[1].time_ns_mean == pytest.approx(27_370)
    assert found.hardware == table.hardware
    assert found.notes == ("run.json: NCCL 2.28.9",)
    path = tmp_path / "run.json"
    known = detect(path)
    assert known[0] == "nccl_tests"


def test_its_json_with_times_of_the_host(tmp_path: Path) -> None:
    (note, *_) = [n for n in read(tmp_path, _json(time="cpu_time"), name="run.json").notes if "host" in n]
    assert "-C 1" in note


@pytest.mark.parametrize("name", ["all_reduce_perf.txt", "table.txt"])
def test_a_reduction_without_a_root_whose_bandwidths_are_the_same_is_an_all_reduce_of_two(
    tmp_path: Path, name: str
) -> None:
    """No other collective has that, whatever its ranks."""
    found = read(tmp_path, log(SIZES, ranks=2, listed=False, started=False), name=name)
    assert {(r.op, r.world_size) for r in found.comm_rows} == {("all_reduce", 2)}
    assert any("no list of devices: 2 ranks, because busbw / algbw of all_reduce is 1" in note for note in found.notes)


def test_a_reduction_to_a_root_leaves_the_ranks_open(tmp_path: Path) -> None:
    text = log(SIZES, op="reduce", listed=False, started=False).replace("sum      -1", "sum       0")
    with pytest.raises(UsageError, match="the number of ranks is unknown"):
        read(tmp_path, text, name="reduce_perf.txt")
    told = read(tmp_path, text, name="reduce_perf.txt", stated=Stated(world_size={"reduce_perf.txt": 6}))
    assert {(r.op, r.world_size) for r in told.comm_rows} == {("reduce", 6)}


def interleaved(*, hosts: tuple[str, ...], gpus: int, order: str, listed: bool = True) -> str:
    """The output of processes that were started together and know nothing of each other."""
    logs = []
    for number, host in enumerate(hosts):
        sizes = [(size, us * (1 + number / 50)) for size, us in SIZES]
        lines = log(sizes, ranks=gpus, listed=listed, started=False).replace("nGpus 1", f"nGpus {gpus}").splitlines()
        logs.append([re.sub(r"Pid \d+ on \S+", f"Pid {700 + number} on {host}", line) for line in lines])
    if order == "by line":
        return "\n".join(line for lines in zip(*logs, strict=True) for line in lines)
    at = next(i for i, line in enumerate(logs[0]) if line.startswith("    "))
    rows = [line for several in zip(*(lines[at:] for lines in logs), strict=True) for line in several]
    return "\n".join([*(line for lines in logs for line in lines[:at]), *rows])


@pytest.mark.parametrize("order", ["by line", "heads first"])
@pytest.mark.parametrize(("hosts", "gpus"), [(("a", "b"), 2), (("n1", "n2", "n3"), 8), (("one", "one"), 4)])
def test_jobs_that_know_nothing_of_each_other_are_told_apart(
    tmp_path: Path, hosts: tuple[str, ...], gpus: int, order: str
) -> None:
    found = read(tmp_path, interleaved(hosts=hosts, gpus=gpus, order=order))
    assert {(row.world_size, row.hosts, row.job_hosts) for row in found.comm_rows} == {(gpus, 1, hosts)}
    assert len(found.comm_rows) == 2 * len(SIZES) * len(hosts)
    assert not any("average" in note or "summary" in note for note in found.notes)


def test_without_lists_of_devices_the_heads_tell_them_apart(tmp_path: Path) -> None:
    text = interleaved(hosts=("a", "b"), gpus=4, order="heads first", listed=False)
    rows = read(tmp_path, text, name="all_reduce.log").comm_rows
    assert {(row.world_size, len(row.job_hosts)) for row in rows} == {(4, 2)}


def test_one_job_a_gpu_communicates_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="4 independent jobs of 1 rank each"):
        read(tmp_path, interleaved(hosts=("a", "a", "b", "b"), gpus=1, order="heads first"))


def test_one_job_after_another_and_a_size_measured_twice_are_no_such_jobs(tmp_path: Path) -> None:
    again = read(tmp_path, log(SIZES) + log(SIZES).replace("Pid 1", "Pid 2"))
    twice = read(tmp_path, log([*SIZES, SIZES[-1]]))
    assert {row.job_hosts for row in (*again.comm_rows, *twice.comm_rows)} == {()}
    assert len(again.comm_rows) == 4 * len(SIZES)


@pytest.mark.parametrize("tag", ["[0] ", "0: ", "[1,0]<stdout>: ", "gpu-a1: ", "[default0]:"])
def test_a_launchers_tag_inside_rows_is_off(tmp_path: Path, tag: str) -> None:
    """Rows are printed in pieces, and a launcher may put its tag before each of them."""
    plain = log(SIZES)
    lines = []
    for line in plain.splitlines():
        if line[:1] == " ":
            at = line.index("-1") + 2
            line = line[:at] + tag.strip() + line[at:]
        lines.append(tag + line)
    assert read(tmp_path, "\n".join(lines)).comm_rows == read(tmp_path, plain).comm_rows
