"""NCCL's debug log: how the ranks' lines lie among each other makes no difference."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.nccl_log import Talk

from stepscope.core.errors import DataError
from stepscope.records.codec import encode_document, plain
from stepscope.records.nccl import NcclDebug
from stepscope.report.views.nccl_debug import build_all
from stepscope.store.importers.nccl_debug import read_nccl_debug

DAMAGE = [
    b"\n", b"\r\n", b"9" * 30, "²".encode(), b"\x80", b"alpha:700:800 [0] NCCL INFO ", b"-> ", b" Init COMPLETE\n", b"\0",
]  # fmt: skip


def read(*files: list[str]) -> NcclDebug:
    with tempfile.TemporaryDirectory() as folder:
        for number, lines in enumerate(files):
            (Path(folder) / f"{number}.log").write_text("".join(f"{line}\n" for line in lines))
        return read_nccl_debug(folder)


@examples(40)
@given(
    nranks=st.integers(1, 6),
    per_host=st.integers(2, 4),
    modern=st.booleans(),
    noise=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n:"), max_size=20), max_size=5),
    data=st.data(),
)
def test_any_interleaving_of_ranks_and_other_output_tells_the_same(
    nranks: int, per_host: int, modern: bool, noise: list[str], data: st.DataObject
) -> None:
    texts = Talk(nranks=nranks, per_host=per_host, modern=modern).texts()
    turns = data.draw(st.permutations([r for r, lines in enumerate(texts) for _ in lines]))
    streams = [iter(lines) for lines in texts]
    mixed = [next(streams[r]) for r in turns]
    for text in noise:
        mixed.insert(data.draw(st.integers(0, len(mixed))), text)
    told, apart = read(mixed), read(*texts)
    assert told.communicators == apart.communicators
    assert (told.messages, told.hosts, told.versions) == (apart.messages, apart.hosts, apart.versions)


@examples(150)
@given(
    modern=st.booleans(),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=12) | st.sampled_from(DAMAGE)),
        max_size=12,
    ),
)
def test_a_damaged_log_is_read_or_refused(modern: bool, cuts: list[tuple[float, int, bytes]]) -> None:
    talk = Talk(nranks=3, modern=modern)
    choice = talk.say(0, "AllReduce: 64 Bytes -> Algo 1 proto 0 time 1.0", tid=1)
    lines = [*(line for text in talk.texts() for line in text), choice, talk.say(1, "x", level="a.cc:1 NCCL WARN")]
    data = "".join(f"{line}\n" for line in lines).encode()
    for where, length, put in cuts:
        at = int(where * len(data))
        data = data[:at] + put + data[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.log"
        path.write_bytes(data)
        try:
            found = read_nccl_debug(path)
        except DataError:
            return
        assert encode_document(plain(found))
        for comm in found.communicators:
            assert all(len(tree.parents) == comm.nranks for tree in comm.trees)
            assert len({r.rank for r in comm.ranks}) == len(comm.ranks)
        assert build_all(found)
