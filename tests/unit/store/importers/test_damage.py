"""Whatever happens to a file, it is read or refused: no importer of tables, loggers or logs of jobs breaks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.store.importers import test_job_logs as jobs
from tests.unit.store.importers import test_loggers as loggers
from tests.unit.store.importers import test_table as tables

from stepscope.core.errors import DataError, UsageError
from stepscope.records import codec
from stepscope.store.foreign import read_foreign

ROUNDS = 60
TOKENS = (b"nan", b"1e999", b"-1", b"0", b"", b"\0", b"\xff", b'"', b",", b"|", b"9" * 30, b"null", b"{}", b"[]", b"\n")


def whole(folder: Path) -> dict[str, bytes]:
    """One sound file of each kind."""
    texts = {
        "titan.log": "\n".join([*jobs.head(), *(jobs.titan(step) for step in (1, 2, 3))]),
        "deepspeed.log": "\n".join(
            [*jobs.CONFIG, *jobs.timer(10, 80.0), "steps: 30 loss: 1.5 iter time (s): 0.250 samples/sec: 256.0"]
        ),
        "chart.csv": loggers.TestWandb.HEAD + "0,2.5,2.4,2.6,3,3,3\n10,2,2,2,3,3,3\n",
        "history.csv": "_step,_runtime,train/loss,epoch,val_acc,note\n0,1.0,2.0,0,,a1\n1,1.5,1.5,0,0.5,\n",
        "metrics.csv": loggers.TestLightning.METRICS,
        "epochs.csv": tables.TestEpochs.TEXT,
        "runs.md": tables.HEAD + "| DDP, synthetic | PyTorch | puhti | 4 | 2023-05-08 | 390.5 |\n",
        "runs.jsonl": '{"gpus": 1, "tokens_per_s": 5, "loss": NaN}\n{"gpus": 2, "tokens_per_s": 9, "model": "a"}\n',
    }
    documents = {
        "trainer_state.json": loggers.state(),
        "run.rank.json": tables.TestJson().run(2),
        "comm.json": tables.TestCollectives().document(
            tables.TestCollectives().row(), tables.TestCollectives().row("all_gather")
        ),
    }
    board = loggers.events(folder / "board", *loggers.TestTensorBoard().curve(0, 1, 2))
    return {
        **{name: text.encode() for name, text in texts.items()},
        **{name: codec.encode_document(document) for name, document in documents.items()},
        board.name: board.read_bytes(),
    }


def damaged(data: bytes, rng: random.Random) -> bytes:
    """``data`` cut, with bytes changed, with tokens over parts of it, or with parts twice."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.random(), rng.randrange(len(found) + 1)
        if kind < 0.25:
            del found[at:]
        elif kind < 0.5:
            found[at : at + 1] = bytes([rng.randrange(256)])
        elif kind < 0.8:
            found[at : at + rng.randint(0, 6)] = rng.choice(TOKENS)
        else:
            begin = rng.randrange(len(found) + 1)
            found[at:at] = found[begin : begin + rng.randint(1, 80)]
    return bytes(found)


@pytest.mark.parametrize("seed", range(3))
def test_damage_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    read = refused = 0
    for name, data in whole(tmp_path).items():
        path = tmp_path / "one" / name
        path.parent.mkdir(exist_ok=True)
        for _ in range(ROUNDS // 3):
            path.write_bytes(damaged(data, rng))
            try:
                imported = read_foreign(path)
                codec.encode_document({"imported": codec.plain(imported)})  # refuses what is not finite
                read += 1
            except (DataError, UsageError):
                refused += 1
        path.unlink()
    assert min(read, refused) > ROUNDS // 3
