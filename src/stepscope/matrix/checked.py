"""A matrix as read, checked and crossed: everything about its cells that does not depend on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.matrix import catalog
from stepscope.matrix.keys import (
    OPTIMIZERS,
    OPTION_GROUPS,
    PRECISIONS,
    REQUIRED_KEYS,
    RIVALS,
    CellSettings,
    CommSection,
    LaunchSettings,
    no_option,
    validate,
)
from stepscope.matrix.matrix_file import COMM, GivenValue, MatrixFile, kind_of, read_sections
from stepscope.matrix.raw_cells import (
    MAX_CELLS,
    RawCell,
    count_cells,
    drop_inapplicable,
    group_values,
    option_schema,
    raw_cells,
    without_excluded,
)
from stepscope.records import mesh
from stepscope.records.cell import LossName, MeasureSettings
from stepscope.records.injection import absent, parse_injection
from stepscope.records.options import OptionsModel
from stepscope.store.yaml_loader import Document, Path, Problem, path_text, raise_problems

_NAMED = {"precision": PRECISIONS, "optimizer": OPTIMIZERS}


@record
class CellDraft:
    """One cell of a matrix, validated; what is left open (device, backend, data digest) a machine decides.

    model, dataset_options, strategy_options: instances of the schemas that its workload, dataset and strategy bring.
    env: the swept environment variables of this cell. loss: resolved. origin: where the file asks for it.
    sections: that it is in.
    """

    settings: CellSettings
    model: OptionsModel
    dataset_options: OptionsModel
    strategy_options: OptionsModel
    env: Mapping[str, str]
    loss: LossName
    micro_batch: int
    global_batch: int
    origin: str
    sections: tuple[str, ...] = ()


@record
class Matrix:
    """A checked matrix.

    cells: in file order, axes first, then includes; equal cells not yet counted once.
    equal_buckets: ``once`` or ``each``: whether cells that differ in bucket_cap_mb alone and realise the same buckets
        are measured once. document: the file as plain values, overrides applied. notes: remarks for the user.
    """

    source: str
    name: str
    description: str | None
    cells: tuple[CellDraft, ...]
    equal_buckets: str
    launch: LaunchSettings
    measure: MeasureSettings
    document: Mapping[str, Any]
    comm: CommSection | None = None
    notes: tuple[str, ...] = ()

    @property
    def sections(self) -> tuple[str, ...]:
        """What ``--only`` may name, in file order; empty: the matrix is one piece."""
        named = dict.fromkeys(name for cell in self.cells for name in cell.sections)
        return (COMM, *named) if named and self.comm is not None else tuple(named)


def build_matrix(document: Document, *, name: str) -> Matrix:
    """Return the matrix in ``document``. All mistakes of the file are raised together as one UsageError.

    name: what to call the matrix when the file does not say.
    """
    if not isinstance(document.value, dict) or not document.value:
        raise _no_matrix(document)
    file = read_sections(document)
    problems = [*document.problems, *file.problems]
    cells, drafts, notes = _checked_cells(file, problems)
    if not cells and not problems:
        problems.append(document.problem((), "no cell is left: exclude removes all of them"))
    raise_problems(document.source, _without_echoes(problems, document))
    return Matrix(
        source=document.source,
        name=file.name or name,
        description=file.description,
        cells=tuple(drafts),
        equal_buckets=file.equal_buckets,
        launch=file.launch,
        measure=file.measure.settings(),
        document=document.value,
        comm=file.comm,
        notes=tuple(notes),
    )


def _without_echoes(problems: list[Problem], document: Document) -> list[Problem]:
    """Give one mistake one line: of the loader's complaint about a value and the key's, only what each knows best."""
    rejected = {problem.path for problem in document.problems}
    of_keys = {p.path: p.message for p in problems if p.path in rejected and p not in document.problems}
    return [
        replace(p, advice=of_keys.get(p.path, p.advice)) if p.advice else p
        for p in problems
        if p in document.problems or p.path not in rejected
    ]


def _no_matrix(document: Document) -> UsageError:
    """Return the one error for a document that is not even a mapping: what its cells lack is no news then."""
    nothing = document.value is None or document.value == {}
    given = "nothing" if nothing else f"a {kind_of(document.value)}"
    place = document.source if nothing else document.mark(())
    return UsageError(
        f"{place}: expected a matrix: a mapping with version, base, axes, ...; found {given}",
        fix="start from a preset: `stepscope bench --preset quick --show > matrix.yaml`",
    )


def _checked_cells(file: MatrixFile, problems: list[Problem]) -> tuple[tuple[RawCell, ...], list[CellDraft], list[str]]:
    """Return the cells of a matrix, their drafts, and notes; what is wrong is added to the problems."""
    total = count_cells(file)
    if total > MAX_CELLS:
        problems.append(file.document.problem(("axes",), f"{total} cells; at most {MAX_CELLS} are allowed in a matrix"))
        return (), [], []
    applicable, misplaced = drop_inapplicable(_with_implied(raw_cells(file)), file.document)
    problems.extend(misplaced)
    for item in file.exclude:
        problems.extend(_check_exclude(item.path, [g.key for g in item.values], applicable, file.document))
    cells, idle = without_excluded(applicable, file.exclude)
    notes = [f"{path_text(item.path)} matches no cell" for item in idle]
    drafts = []
    for cell in cells:
        check = _CellCheck(cell=cell, file=file, problems=[])
        draft = check.draft()
        problems.extend(check.problems)
        if draft is not None:
            drafts.append(draft)
    return cells, drafts, notes


def _with_implied(cells: Iterable[RawCell]) -> Iterator[RawCell]:
    """Yield the cells with what their workload implies where they do not say it."""
    for cell in cells:
        workload = cell.values.get("workload")
        implied = catalog.implied(workload.value) if workload and isinstance(workload.value, str) else {}
        more = {
            key: GivenValue(key=key, value=value, path=workload.path)
            for key, value in implied.items()
            if workload and (key not in cell.values or cell.values[key].value is None)
        }
        yield replace(cell, values={**cell.values, **more}) if more else cell


def _check_exclude(path: Path, keys: list[str], cells: tuple[RawCell, ...], document: Document) -> list[Problem]:
    """Return a problem for each option of an exclude item that no cell of the matrix has: the item never matches."""
    problems = []
    for key in keys:
        group, dot, option = key.partition(".")
        if not dot or group not in OPTION_GROUPS:
            continue
        schemas = [s for s in (option_schema(cell, group) for cell in cells) if s is not None]
        options = {name for schema in schemas for name in schema.model_fields}
        if schemas and not any(schema.takes(option) for schema in schemas):
            problems.append(
                document.problem((*path, key), no_option(f"no {OPTION_GROUPS[group]} of the matrix", option, options))
            )
    return problems


@dataclass(slots=True, kw_only=True)
class _CellCheck:
    """The checks of one raw cell; complaints are placed where the offending value was written."""

    cell: RawCell
    file: MatrixFile
    problems: list[Problem]

    def draft(self) -> CellDraft | None:
        """Return the draft of a cell; None, with a complaint, where it is wrong."""
        settings = self._settings()
        model = self._options("model")
        dataset = self._options("dataset_options")
        strategy = self._options("strategy_options")
        if settings is None or model is None or dataset is None or strategy is None:
            return None
        misfit = catalog.misfit(settings.workload, model, settings.dataset, dataset)
        if misfit is not None:
            self._complain("dataset", misfit)
        loss = self._loss(settings)
        batches = self._batches(settings)
        self._loading(settings)
        self._own(settings)
        self._faults(settings)
        if self.problems or batches is None or loss is None:
            return None
        return CellDraft(
            settings=settings,
            model=model,
            dataset_options=dataset,
            strategy_options=strategy,
            env=self._env(),
            loss=loss,
            micro_batch=batches[0],
            global_batch=batches[1],
            origin=self.cell.label,
            sections=next((item.sections for item in self.file.include if item.path == self.cell.origin), ()),
        )

    def _complain(self, key: str, message: str) -> None:
        """Add a problem, at the key's place in the file, else at the cell's."""
        given = self.cell.values.get(key)
        path = given.path if given is not None else self.cell.origin
        problem = self.file.document.problem(path, message)
        if given is None:
            problem = Problem(problem.mark, f"{path_text(path)}: {key}", message)
        self.problems.append(problem)

    def _settings(self) -> CellSettings | None:
        """Return the settings without options; None, with complaints, where they are wrong."""
        plain = {k: g.value for k, g in self.cell.values.items() if "." not in k and g.value is not None}
        self._mesh(plain)
        for key in REQUIRED_KEYS:
            if key not in plain and key not in self.file.broken_keys:
                self._complain(
                    key, f"missing: neither base nor this cell sets {CellSettings.model_fields[key].description}"
                )
        for first, second in RIVALS:
            self._exactly_one(first, second, plain)
        result = validate(CellSettings, plain, kind="key")
        if not isinstance(result, tuple):
            return result
        for complaint in result:
            if complaint.key in plain:
                self._complain(complaint.key, self._with_names(complaint.key, plain[complaint.key], complaint.message))
        return None

    def _mesh(self, plain: dict[str, Any]) -> None:
        """Fill in the number of ranks that a mesh says, where the cell leaves it open."""
        given = plain.get("mesh")
        if not isinstance(given, dict) or not given:
            return
        world_size = plain.get("world_size")
        if (reason := mesh.misfit(given, world_size if isinstance(world_size, int) else None)) is not None:
            self._complain("mesh", reason)
            del plain["mesh"]
            given = {}
        plain.setdefault("world_size", prod(given.values()))

    def _with_names(self, key: str, value: Any, message: str) -> str:
        if key in _NAMED and isinstance(value, str):
            return unknown(key, value, _NAMED[key])
        return message

    def _exactly_one(self, first: str, second: str, plain: Mapping[str, Any]) -> None:
        """Complain unless one of two keys is given."""
        if first in plain and second in plain:
            where = self.file.document.mark(self.cell.values[first].path)
            self._complain(second, f"both {first} ({where}) and {second} are given: keep one of the two")
        elif not {first, second} & (plain.keys() | self.file.broken_keys):
            hint = "; `steps: auto` measures until the step time is known well enough" if first == "steps" else ""
            self._complain(first, f"give either {first} or {second}{hint}")

    def _options(self, group: str) -> OptionsModel | None:
        """Return the options of a group; None, with complaints, where they are wrong."""
        owner_key = OPTION_GROUPS[group]
        owner = self.cell.values.get(owner_key)
        if owner is None or not isinstance(owner.value, str):
            return None  # missing or of the wrong type: already said
        if (refusal := catalog.refuses(group, owner.value)) is not None:
            self._complain(owner_key, refusal)
            return None
        given = group_values(self.cell, group)
        values = {name: g.value for name, g in given.items()}
        schema = catalog.options_of(group, owner.value)
        result = validate(schema, values, kind=f"option of {owner_key} {owner.value!r}")
        if not isinstance(result, tuple):
            return result
        for complaint in result:
            key = f"{group}.{complaint.key}"
            self._complain(
                key if key in self.cell.values else owner_key, self._with_option(complaint.key, key, complaint.message)
            )
        return None

    def _with_option(self, name: str, key: str, message: str) -> str:
        """Return the message, naming the option where the place alone does not."""
        return message if not name or key in self.cell.values else f"{key}: {message}"

    def _env(self) -> dict[str, str]:
        values = group_values(self.cell, "env")
        return {name: str(g.value) for name, g in sorted(values.items()) if g.value is not None}

    def _loss(self, settings: CellSettings) -> LossName | None:
        """Return the loss, the workload's own first one by default; None, with a complaint, for one that it does not
        take."""
        losses = catalog.FAMILIES["model"].load(settings.workload).losses
        loss = settings.loss or losses[0]
        if loss not in losses:
            self._complain("loss", f"workload {settings.workload!r} is trained with {' or '.join(losses)}, not {loss}")
            return None
        return cast(LossName, loss)

    def _batches(self, settings: CellSettings) -> tuple[int, int] | None:
        """Return (micro_batch, global_batch): global = micro x data shards x accumulation."""
        data = mesh.size(mesh.canonical(settings.mesh or {}), settings.world_size, "dp")
        shards = data * settings.accumulation
        if settings.micro_batch is not None:
            return settings.micro_batch, settings.micro_batch * shards
        if settings.global_batch is None:
            return None
        micro, rest = divmod(settings.global_batch, shards)
        if rest == 0:
            return micro, settings.global_batch
        split = f"world_size {settings.world_size}" if data == settings.world_size else f"dp {data}"
        if settings.accumulation > 1:
            split += f" x accumulation {settings.accumulation} = {shards}"
        if micro == 0:
            self._complain("global_batch", f"{settings.global_batch} is smaller than {split}: use at least {shards}")
        else:
            self._complain(
                "global_batch",
                f"{settings.global_batch} is not divisible by {split}: "
                f"use {micro * shards} or {(micro + 1) * shards}, or give micro_batch",
            )
        return None

    def _loading(self, settings: CellSettings) -> None:
        if settings.persistent_workers and settings.num_workers == 0:
            self._complain("persistent_workers", "there are no workers: set num_workers to at least 1")

    def _faults(self, settings: CellSettings) -> None:
        """Complain about planted faults that are none, or that slow a rank which the cell does not have."""
        if settings.inject is None:
            return
        try:
            reason = absent(parse_injection(settings.inject), settings.world_size)
        except UsageError as error:
            reason = error.line
        if reason is not None:
            self._complain("inject", reason)

    def _own(self, settings: CellSettings) -> None:
        """Complain about what a user's own model cannot have, and what it alone has."""
        if not catalog.implied(settings.workload):
            if settings.optimizer == "own":
                self._complain("optimizer", f"own needs a python: workload, and {settings.workload} is not one")
            return
        if settings.epochs is not None:
            self._complain("epochs", "a python: workload has no epochs: give steps")
        for key in ("num_workers", "pin_memory"):
            if getattr(settings, key):
                self._complain(key, "the rank makes the batches of a python: workload in its own process: remove it")
