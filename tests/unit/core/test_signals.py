"""Stop signals as exceptions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from stepscope.core.errors import Interrupted
from stepscope.core.forks import STOP_SIGNALS, stop_signals_raise


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stop_signal_is_an_interruption_with_the_exit_code_of_a_shell(number: int, code: int) -> None:
    def work() -> None:
        with stop_signals_raise("stopped while reading"):
            os.kill(os.getpid(), number)
            time.sleep(5)

    with pytest.raises(Interrupted, match="stopped while reading") as raised:
        work()
    assert raised.value.exit_code == code


def test_the_handlers_from_before_are_back_after_the_block() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    with stop_signals_raise("stopped"):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals_raise("stopped"):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
