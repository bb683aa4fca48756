"""The diary's clock from part to part, with a clock that the test moves."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.records.parts import RECORDED
from stepscope.records.profile import COLUMNS, RECORD
from stepscope.store.diary import RankDiary, read_diaries
from stepscope.store.layout import ProfileLayout

MS = 1_000_000


class Clock:
    """Time that passes when told; busy: of which the thread's CPU time takes part."""

    def __init__(self) -> None:
        self.now = 10**9
        self.cpu = 0
        self.delay = 0

    def passes(self, ms: float, *, busy: bool = True) -> None:
        self.now += round(ms * MS)
        self.cpu += round(ms * MS) * busy


class Rig:
    """One process of one rank: what torch would call, by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, hook: Any, world: int = 1) -> None:
        self.folder, self.clock = folder, Clock()
        clock = self.clock
        for module in (hook.diary, hook.outside):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: clock.now)
        monkeypatch.setattr(hook.diary, "thread_time_ns", lambda: clock.cpu)
        queue = SimpleNamespace(file=1, delay_ns=lambda: clock.delay, close=lambda: None)
        monkeypatch.setattr(hook.diary, "RunQueue", lambda: queue)
        monkeypatch.setattr(hook.diary, "identity", lambda: (0, world))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
        control = hook.control.Control({"output": str(folder), "tool_version": "0"})
        self.pages = hook.pages.Pages(control)
        monkeypatch.setattr(self.pages, "watch", lambda: None)
        self.diary = hook.diary.Diary(control, self.pages)
        self.optimizer = object()
        self.model = SimpleNamespace(training=True)

    def data(self, ms: float, *, exhausted: bool = False, place: object = None) -> None:
        look = self.diary.data_begins()
        self.clock.passes(ms)
        self.diary.data_ends(look, exhausted, place)

    def forward(self, ms: float, *, training: bool = True, grad: bool = True) -> None:
        self.model.training = training
        self.diary.forward_begins(self.model, grad)
        self.clock.passes(ms)
        self.diary.forward_ends()

    def teach(self, ms: float) -> None:
        """A pass without gradients of a module that does not train."""
        self.diary.forward_begins(None, False)
        self.clock.passes(ms)
        self.diary.forward_ends()

    def backward(self, ms: float) -> None:
        outermost = self.diary.backward_begins()
        self.clock.passes(ms)
        self.diary.backward_ends(outermost)

    def save(self, ms: float) -> None:
        look = self.diary.save_begins("torch.save")
        self.clock.passes(ms)
        self.diary.save_ends(look)

    def wait(self, ms: float) -> None:
        phase = self.diary.waits()
        self.clock.passes(ms, busy=False)
        self.diary.waited(phase)

    def optimize(self, ms: float, *, optimizer: object = None, counts: bool = True) -> None:
        self.diary.optimizer_begins(optimizer or self.optimizer)
        self.clock.passes(ms)
        self.diary.optimizer_ends(optimizer or self.optimizer)
        if counts:
            self.diary.boundary()

    def step(self) -> None:
        """2 ms of data, 1 before, 3 forward, 4 backward, 0.5 other, 1 of the optimizer: 11.5 ms."""
        self.data(2)
        self.clock.passes(1)
        self.forward(3)
        self.backward(4)
        self.clock.passes(0.5)
        self.optimize(1)

    def read(self) -> RankDiary:
        self.diary.close()
        self.pages.close()
        (found,) = read_diaries(ProfileLayout(self.folder))
        return found


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Any) -> Rig:
    return Rig(tmp_path, monkeypatch, hook)


NOTHING = {name.removesuffix("_ns"): 0.0 for name in COLUMNS}


def _ms(diary: RankDiary, step: int) -> dict[str, float]:
    return {name.removesuffix("_ns"): round(float(diary.columns[name][step]) / MS, 3) for name in COLUMNS}


def test_the_format_is_that_of_the_reader(hook: Any) -> None:
    record = hook.record
    assert record.RECORD.format == RECORD.format(len(COLUMNS))
    assert set(record.COLUMNS) == set(COLUMNS)
    assert all(record.COLUMNS[getattr(record, name.removesuffix("_ns").upper())] == name for name in COLUMNS)
    assert record.PARTS.keys() == {*RECORDED, "other"}


def test_the_parts_of_a_step_add_up_and_cpu_is_without_data(rig: Rig) -> None:
    for _ in range(3):
        rig.step()
    diary = rig.read()
    assert diary.steps == 3
    assert list(diary.flags) == [16, 0, 0]
    parts = {"data": 2, "before": 1, "forward": 3, "backward": 4, "optimizer": 1, "before_cpu": 1}
    assert _ms(diary, 1) == NOTHING | parts | {"whole": 11.5, "cpu": 9.5}
    assert list(diary.micro_steps) == [1, 1, 1]
    assert diary.end is None


def test_the_time_without_a_processor_is_a_share_of_the_step_without_data(rig: Rig) -> None:
    rig.step()
    rig.data(2)
    rig.forward(3)
    rig.clock.delay += round(2.5 * MS)
    rig.backward(4)
    look = rig.diary.data_begins()
    rig.clock.delay += MS
    rig.clock.passes(1)
    rig.diary.data_ends(look, False)
    rig.clock.passes(-1)
    rig.optimize(1)
    assert rig.read().delay[1] == pytest.approx(0.25, abs=1e-4)


def test_micro_steps_of_an_accumulation_are_one_step(rig: Rig) -> None:
    rig.step()
    for _ in range(4):
        rig.data(1)
        rig.forward(2)
        rig.backward(3)
    rig.optimize(1)
    diary = rig.read()
    step = _ms(diary, 1)
    assert (step["data"], step["forward"], step["backward"], step["whole"]) == (4, 8, 12, 25)
    assert diary.micro_steps[1] == 4


def test_waits_are_taken_out_of_the_part_in_which_they_lie(tmp_path: Path, monkeypatch: Any, hook: Any) -> None:
    rig = Rig(tmp_path, monkeypatch, hook, world=2)
    rig.step()
    rig.diary.forward_begins(rig.model, True)
    rig.clock.passes(2)
    rig.wait(5)
    rig.diary.forward_ends()
    outermost = rig.diary.backward_begins()
    rig.wait(3)
    rig.clock.passes(4)
    rig.diary.backward_ends(outermost)
    rig.optimize(1)
    diary = rig.read()
    step = _ms(diary, 1)
    assert (step["forward"], step["backward"], step["comm"], step["cpu"], step["whole"]) == (2, 4, 8, 7, 15)
    assert np.isnan(diary.columns["comm_ns"][0]), "nobody has waited yet: not known"


def test_an_evaluation_is_outside_with_the_data_that_it_fetched(rig: Rig) -> None:
    rig.step()
    rig.data(1, exhausted=True)
    rig.clock.passes(1)
    for _ in range(3):
        rig.data(2)
        rig.forward(5, training=False, grad=False)
        rig.clock.passes(1)
    rig.data(0.5, exhausted=True)
    rig.clock.passes(3)  # the metric
    rig.step()
    diary = rig.read()
    (event,) = diary.events
    assert (event.kind, event.step, event.count, event.ns) == ("evaluation", 2, 3, round(27.5 * MS))
    parts = {"data": 3, "before": 2, "forward": 3, "backward": 4, "optimizer": 1, "outside": 27.5}
    assert _ms(diary, 1) == NOTHING | parts | {"before_cpu": 2, "whole": 41, "cpu": 10.5}


def test_a_rollout_between_updates_is_an_event_and_no_evaluation(rig: Rig) -> None:
    for _ in range(3):
        for _ in range(4):
            rig.forward(5, grad=False)
            rig.clock.passes(1)
        for _ in range(3):
            rig.step()
    diary = rig.read()
    assert [(event.kind, event.step, event.count, event.ns) for event in diary.events] == [
        ("inference", step, 4, 24 * MS) for step in (1, 4, 7)
    ]
    assert _ms(diary, 3) == _ms(diary, 4) | {"outside": 24, "whole": 35.5}


def test_passes_without_gradients_in_every_step_are_a_part_of_it(rig: Rig) -> None:
    """Of the model itself before it trains, and of a teacher after its forward pass."""
    rig.teach(1)
    assert not rig.diary.ever_forward, "the model's own passes are still to be looked for"
    rig.step()
    for _ in range(4):
        rig.data(2)
        rig.forward(7, grad=False)
        rig.clock.passes(1)
        rig.forward(3)
        rig.teach(6)
        rig.clock.passes(0.5)
        rig.backward(4)
        rig.optimize(1)
    diary = rig.read()
    assert [(event.kind, event.step) for event in diary.events] == [("inference", 2)], (
        "the first of them may be a rollout"
    )
    parts = {"data": 2, "before": 1, "forward": 3.5, "backward": 4, "optimizer": 1}
    assert _ms(diary, 3) == NOTHING | parts | {"inference": 13, "before_cpu": 8, "whole": 24.5, "cpu": 22.5}


def test_a_teacher_is_a_part_from_the_first_step_that_knows_it(rig: Rig) -> None:
    rig.step()
    rig.data(2)
    rig.teach(6)
    rig.forward(3)
    rig.backward(4)
    rig.optimize(1)
    diary = rig.read()
    assert diary.events == ()
    assert _ms(diary, 1) == _ms(diary, 1) | {"data": 2, "before": 0, "inference": 6}


def _loader(dataset: object, workers: int = 0, *, persistent: bool = False) -> tuple[Any, Any]:
    """A loader, and the iterator of an epoch."""
    loader = SimpleNamespace(dataset=dataset, num_workers=workers, persistent_workers=persistent)
    return loader, SimpleNamespace(_dataset=dataset, _num_workers=workers, _persistent_workers=persistent)


def test_batches_that_are_not_trained_on_make_an_evaluation_in_whatever_mode(rig: Rig) -> None:
    (_, training), (_, validation) = _loader(object()), _loader(object())
    for at in range(8):
        if at in (3, 6):
            for teacher in (False, True):
                rig.data(2, place=validation)
                rig.teach(5) if teacher else rig.forward(5, grad=False)
            rig.data(0.5, exhausted=True, place=validation)
        rig.data(2, place=training)
        rig.forward(3)
        rig.backward(4)
        rig.optimize(1)
    assert [(event.kind, event.step, event.ns) for event in rig.read().events] == [
        ("evaluation", step, round(14.5 * MS)) for step in (4, 7)
    ]


def test_prompts_that_training_goes_on_between_make_no_evaluation(rig: Rig) -> None:
    """A rollout on batches of one loader, updates on those of another one."""
    (_, prompts), buffer = _loader(object()), object()
    for _ in range(4):
        rig.data(2, place=prompts)
        rig.forward(9, grad=False)
        updates = _loader(buffer)[1]
        for _ in range(3):
            rig.data(1, place=updates)
            rig.forward(3)
            rig.backward(4)
            rig.optimize(1)
        rig.data(0, exhausted=True, place=updates)
    kinds = [(event.kind, event.step) for event in rig.read().events]
    assert kinds[2:] == [("inference", 7), ("inference", 10)], "by then the same iterator was asked again"


def test_an_evaluation_and_a_rollout_beside_each_other_are_two_events(rig: Rig) -> None:
    rig.step()
    rig.step()
    rig.forward(5, training=False, grad=False)
    rig.forward(7, grad=False)
    rig.teach(2)
    rig.step()
    diary = rig.read()
    assert [(event.kind, event.ns) for event in diary.events] == [("evaluation", 5 * MS), ("inference", 9 * MS)]
    assert _ms(diary, 2)["outside"] == 14


def test_a_pass_that_is_computed_again_with_gradients_is_a_forward_pass(rig: Rig) -> None:
    for _ in range(4):
        rig.data(1)
        rig.forward(5, grad=False)
        rig.backward(8)
        rig.optimize(1)
    step = _ms(rig.read(), 3)
    assert (step["inference"], step["forward"], step["backward"]) == (0, 5, 8)


@pytest.mark.parametrize(("workers", "persistent", "told"), [(2, False, True), (2, True, False), (0, False, False)])
def test_workers_of_an_epoch_that_start_anew_are_an_event_and_no_wait_for_data(
    rig: Rig, workers: int, persistent: bool, told: bool
) -> None:
    dataset = object()
    for _ in range(3):
        loader, epoch = _loader(dataset, workers, persistent=persistent)
        rig.data(20, place=loader)
        for _ in range(3):
            rig.data(10, place=epoch)
            rig.forward(3)
            rig.backward(4)
            rig.optimize(1)
        rig.data(5, exhausted=True, place=epoch)
    diary = rig.read()
    events = [(event.kind, event.step, event.ns, event.what) for event in diary.events]
    assert events == ([("loader_start", step, 35 * MS, "2 workers") for step in (4, 7)] if told else [])
    assert [_ms(diary, 3)[part] for part in ("data", "outside", "whole")] == ([0, 35, 43] if told else [35, 0, 43])


def test_workers_of_an_evaluation_are_its_own(rig: Rig) -> None:
    (train, epoch), (validation, batches) = _loader(object(), 2), _loader(object(), 2)
    for _ in range(2):
        rig.data(20, place=train)
        for _ in range(3):
            rig.data(1, place=epoch)
            rig.forward(3)
            rig.backward(4)
            rig.optimize(1)
        rig.data(5, exhausted=True, place=epoch)
        rig.data(30, place=validation)
        rig.data(1, place=batches)
        rig.forward(5, training=False, grad=False)
        rig.data(5, exhausted=True, place=batches)
    events = [(event.kind, event.step, event.ns) for event in rig.read().events]
    assert events == [("evaluation", 4, 41 * MS), ("loader_start", 4, 26 * MS), ("evaluation", 7, 36 * MS)]


def test_an_evaluation_without_a_loader_ends_with_its_last_pass(rig: Rig) -> None:
    rig.step()
    rig.forward(5, training=False, grad=False)
    rig.clock.passes(1)
    rig.step()
    rig.step()
    diary = rig.read()
    assert (diary.events[0].ns, diary.events[0].count, diary.events[0].at_ns) == (6 * MS, 1, round(11.5 * MS))
    assert _ms(diary, 2)["outside"] == 0


def test_a_checkpoint_inside_an_evaluation_counts_once(rig: Rig) -> None:
    rig.step()
    rig.data(1)
    rig.forward(5, training=False, grad=False)
    rig.save(7)
    rig.forward(5, training=False, grad=False)
    rig.step()
    diary = rig.read()
    assert {event.kind: event.ns for event in diary.events} == {"checkpoint": 7 * MS, "evaluation": 11 * MS}
    assert _ms(diary, 1)["outside"] == 18
    assert _ms(diary, 1)["whole"] == 29.5


def test_a_checkpoint_between_steps_is_outside(rig: Rig) -> None:
    rig.step()
    rig.save(7)
    rig.step()
    step = _ms(rig.read(), 1)
    assert (step["outside"], step["before"], step["cpu"], step["whole"]) == (7, 1, 9.5, 18.5)


def test_an_evaluation_after_the_last_step_is_told(rig: Rig) -> None:
    rig.step()
    rig.data(1)
    rig.forward(5, training=False, grad=False)
    diary = rig.read()
    assert diary.steps == 1
    assert [(event.kind, event.step, event.ns) for event in diary.events] == [("evaluation", 2, 6 * MS)]


def test_training_in_eval_mode_is_training(rig: Rig) -> None:
    """Frozen batch norms: ``model.eval()``, and yet a backward pass follows."""
    rig.step()
    for _ in range(2):
        rig.data(2)
        rig.forward(3, training=False)
        rig.backward(4)
        rig.optimize(1)
    diary = rig.read()
    assert _ms(diary, 2) == _ms(diary, 2) | {"forward": 3, "outside": 0, "data": 2}
    rest = [event for event in diary.events if event.step > 2]
    assert rest == []


def test_steps_of_a_second_optimizer_are_time_of_optimizers(rig: Rig) -> None:
    other = object()
    for _ in range(2):
        rig.forward(3)
        rig.backward(4)
        rig.optimize(2, optimizer=other, counts=False)
        rig.forward(3)
        rig.backward(1)
        rig.optimize(1)
    diary = rig.read()
    step = _ms(diary, 1)
    assert (step["forward"], step["backward"], step["optimizer"]) == (6, 5, 3)
    assert diary.micro_steps[1] == 1


def test_passes_in_a_closure_are_no_time_of_the_optimizer(rig: Rig) -> None:
    rig.step()
    rig.diary.optimizer_begins(rig.optimizer)
    rig.clock.passes(1)
    for _ in range(2):
        rig.forward(3)
        rig.backward(4)
        rig.clock.passes(2)
    rig.diary.optimizer_ends(rig.optimizer)
    rig.diary.boundary()
    step = _ms(rig.read(), 1)
    assert (step["before"], step["forward"], step["backward"], step["optimizer"]) == (1, 6, 8, 4)


def test_an_optimizer_whose_step_raised_does_not_stay_open(rig: Rig) -> None:
    rig.step()
    rig.diary.optimizer_begins(rig.optimizer)
    rig.clock.passes(1)
    rig.step()
    rig.step()
    assert _ms(rig.read(), 2)["optimizer"] == 1


def test_a_wall_clock_that_jumps_moves_no_sample(rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.step()
    before = rig.diary.unix_s()
    monkeypatch.setattr(hook.diary.time, "time_ns", lambda: 0)
    monkeypatch.setattr(hook.diary.time, "time", lambda: 0.0)
    rig.clock.passes(1500)
    assert rig.diary.unix_s() - before == pytest.approx(1.5, abs=1e-6)


def test_passes_of_a_model_that_is_not_known_begin_after_the_data(rig: Rig) -> None:
    for _ in range(2):
        rig.data(2)
        rig.clock.passes(3)
        rig.backward(4)
        rig.optimize(1)
    step = _ms(rig.read(), 1)
    assert (step["data"], step["before"], step["forward"], step["backward"]) == (2, 0, 3, 4)


def test_what_raises_switches_the_diary_off_and_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.step()

    def fails() -> int:
        raise OSError("no such file")

    monkeypatch.setattr(rig.diary.queue, "delay_ns", fails)
    rig.step()
    rig.step()
    diary = rig.read()
    assert diary.steps == 1
    assert [event.kind for event in diary.events] == ["off"]
    assert "no such file" in diary.events[0].what
    assert not rig.diary.in_training_thread()


def test_another_thread_is_not_looked_at_until_it_makes_the_steps(rig: Rig) -> None:
    rig.step()
    other = threading.Thread(target=rig.step)
    other.start()
    other.join()
    assert not rig.diary.in_training_thread()
    diary = rig.read()
    assert diary.steps == 2
    assert np.isnan(diary.columns["cpu_ns"][1])
    assert np.isnan(diary.delay[1])


def test_a_diary_that_cannot_be_written_is_bounded_and_says_what_it_lost(
    rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rig.step()
    rig.pages.flush()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hook.pages, "MOST_BYTES", 10 * hook.record.RECORD.size)
    with monkeypatch.context() as disk:
        disk.setattr(hook.pages.os, "write", full)
        for _ in range(50):
            rig.step()
        rig.pages.flush()
    assert len(rig.pages.steps) == 10 * hook.record.RECORD.size
    rig.step()
    diary = rig.read()
    assert diary.steps == 1 + 10
    assert [(event.kind, event.step, event.count) for event in diary.events] == [("dropped", 12, 41)]
    assert capfd.readouterr().err.count("No space left") == 1


def test_a_process_does_not_wait_for_a_folder_that_stands_still(
    rig: Rig, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.step()
    monkeypatch.setattr(hook.pages, "MOST_S", 0.2)
    goes_on, real = threading.Event(), os.write

    def stalls(*arguments: Any) -> int:
        goes_on.wait()
        return real(*arguments)

    with monkeypatch.context() as still:
        still.setattr(hook.pages.os, "write", stalls)
        hook.pages.Pages.watch(rig.pages)
        told: list[bool] = []
        rig.pages.close(lambda: told.append(True))
        assert told == []
        goes_on.set()
        rig.pages.thread.join()
    assert told == [True]


def test_every_process_of_a_rank_has_a_diary_of_its_own(tmp_path: Path, monkeypatch: Any, hook: Any) -> None:
    for _ in range(3):
        rig = Rig(tmp_path, monkeypatch, hook)
        rig.step()
        rig.pages.close()
    names = sorted(path.name for path in ProfileLayout(tmp_path).diaries())
    assert names == [f"diary-00000-{attempt}.bin" for attempt in range(3)]


def test_a_fork_writes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, hook: Any) -> None:
    rig.step()
    rig.pages.flush()
    size = ProfileLayout(rig.folder).diaries()[0].stat().st_size
    rig.step()
    monkeypatch.setattr(hook.pages.os, "getpid", lambda: -1)
    rig.pages.flush()
    assert ProfileLayout(rig.folder).diaries()[0].stat().st_size == size


class _Parameter:
    def __init__(self) -> None:
        self.requires_grad = True
        self.hooks: list[Any] = []

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def ready(self) -> None:
        for each in list(self.hooks):
            each(self)


def test_the_last_gradient_is_learned_and_what_follows_it_is_communication(
    tmp_path: Path, monkeypatch: Any, hook: Any
) -> None:
    rig = Rig(tmp_path, monkeypatch, hook, world=2)
    monkeypatch.setattr(hook.gradients, "perf_counter_ns", lambda: rig.clock.now)
    parameters = [_Parameter() for _ in range(5)]
    inner = SimpleNamespace(named_parameters=lambda: [(str(at), each) for at, each in enumerate(parameters)])
    ddp = SimpleNamespace(module=inner, require_forward_param_sync=True)
    rig.diary.tail = hook.gradients.LastGradient(rig.diary, [ddp])
    for at in range(5):
        ddp.require_forward_param_sync = at != 4
        rig.forward(1)
        outermost = rig.diary.backward_begins()
        for each in reversed(parameters):
            rig.clock.passes(2)
            each.ready()
        rig.clock.passes(7, busy=False)
        rig.diary.backward_ends(outermost)
        rig.optimize(1)
    diary = rig.read()
    assert [len(each.hooks) for each in parameters] == [1, 0, 0, 0, 0]
    for at in range(4):
        assert (_ms(diary, at)["backward"], _ms(diary, at)["comm"]) == (10, 7), at
    assert (_ms(diary, 4)["backward"], _ms(diary, 4)["comm"]) == (17, 0), "no_sync: nothing is sent"


class _Event:
    """Of a device that is ``behind`` the host: what was recorded within the last ms has not happened yet."""

    def __init__(self, clock: Clock, behind: float) -> None:
        self.clock, self.behind, self.at = clock, behind, 0

    def record(self) -> None:
        self.at = self.clock.now

    def query(self) -> bool:
        return self.clock.now - self.at >= self.behind * MS

    def elapsed_time(self, end: _Event) -> float:
        assert end.query(), "this would wait for the device"
        return (end.at - self.at) / MS


@pytest.mark.parametrize(("behind", "comm"), [(5.0, 7.0), (1000.0, None)])
def test_waiting_on_a_device_is_read_a_step_later_without_waiting_for_it(
    tmp_path: Path, monkeypatch: Any, hook: Any, behind: float, comm: float | None
) -> None:
    rig = Rig(tmp_path, monkeypatch, hook, world=2)
    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: False, Event=lambda enable_timing: _Event(rig.clock, behind * enable_timing)
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    parameters = [_Parameter() for _ in range(3)]
    inner = SimpleNamespace(named_parameters=lambda: [(str(at), each) for at, each in enumerate(parameters)])
    rig.diary.on_device = True
    rig.diary.tail = hook.gradients.LastGradientOnDevice(rig.diary, [SimpleNamespace(module=inner)])
    for _ in range(4):
        rig.forward(1)
        outermost = rig.diary.backward_begins()
        for each in reversed(parameters):
            rig.clock.passes(2)
            each.ready()
        rig.clock.passes(7)
        rig.diary.backward_ends(outermost)
        rig.optimize(1)
    diary = rig.read()
    assert diary.steps == 4
    assert list(diary.flags & 4) == ([4] * 3 + [0] if comm is not None else [0] * 4)
    for at in range(3):
        step = _ms(diary, at)
        assert (step["comm"] == comm) if comm is not None else np.isnan(step["comm"])
        assert sum(step[name] for name in ("forward", "backward", "optimizer")) + (comm or 0) == step["whole"] == 15


def _times(ms: float, steps: int, spread: float = 0.0) -> list[float]:
    return [ms * MS * (1 + spread * (-1) ** at) for at in range(steps)]


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        (_times(10, 20), 8),
        (_times(10, 20, spread=0.1), 32),
        (_times(10, 20, spread=0.05), 14),
        (_times(10, 2), 8),
        ([], 8),
        (_times(4000, 4), 3),
        (_times(60_000, 1), 1),
    ],
)
def test_a_window_has_as_many_steps_as_the_spread_asks_for_and_time_allows(
    hook: Any, times: list[float], steps: int
) -> None:
    chosen, bounded = hook.plans.steps_of({"steps": "auto"}, times)
    assert chosen == steps
    assert (bounded is not None) == (steps < 8)
    assert hook.plans.steps_of({"steps": 3}, times) == (3, None)


def test_an_end_names_the_innermost_line_of_the_users_own(hook: Any) -> None:
    with pytest.raises(ValueError, match="property name") as caught:
        json.loads("{")
    place = hook.ends.place_of(caught.tb)
    assert place.startswith(f"{__file__}:")
    assert place.endswith('in test_an_end_names_the_innermost_line_of_the_users_own: json.loads("{")')
