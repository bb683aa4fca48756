"""Reading a matrix: a file or a preset, the changes from the command line, the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.config.matrix import Matrix, build_matrix
from stepscope.config.options import OptionsModel
from stepscope.config.overrides import Override, apply_overrides
from stepscope.config.yaml_loader import Document, read_yaml
from stepscope.core.errors import UsageError
from stepscope.core.suggest import did_you_mean
from stepscope.matrix.catalog import CATALOG, Catalog
from stepscope.matrix.presets import preset_document, preset_names


def load_matrix(
    source: Path | str | Document, *, overrides: Sequence[Override] = (), catalog: Catalog = CATALOG
) -> Matrix:
    """The matrix in a file (``Path``), of a preset (``str``) or already read, with ``--set`` changes applied, checked.

    All mistakes are raised together as one UsageError with file, line, column and key path of each.
    """
    document = source if isinstance(source, Document) else read_document(source)
    name = source.stem if isinstance(source, Path) else document.source.removeprefix("preset ")
    return matrix_of(document, name=name, overrides=overrides, catalog=catalog)


def matrix_of(
    document: Document, *, name: str, overrides: Sequence[Override] = (), catalog: Catalog = CATALOG
) -> Matrix:
    """The matrix in a document that has been read already."""
    return build_matrix(apply_overrides(document, overrides), catalog.vocabulary(), name=name)


def read_document(source: Path | str) -> Document:
    """The file or the preset as values with positions. A file that is not there but is named like a preset says so."""
    if isinstance(source, str):
        return preset_document(source)
    if not source.exists() and (near := did_you_mean(source.stem, preset_names())) is not None:
        raise UsageError(f"there is no file {source}", fix=f"for the preset write --preset {near}")
    return read_yaml(source)


def digest_lookup(data_dir: Path | None, *, catalog: Catalog = CATALOG) -> Callable[[str, OptionsModel], str]:
    """The ``digest_of`` of :func:`stepscope.matrix.expand.expand`: finds a dataset's files and names their content.

    Each dataset with the same options is looked at once. Raises DataError when files are missing or damaged.
    """
    found: dict[str, str] = {}

    def digest_of(key: str, options: OptionsModel) -> str:
        known = f"{key} {options.model_dump_json()}"
        if known not in found:
            dataset = catalog.dataset(key)
            found[known] = dataset.digest(options, dataset.locate(options, data_dir))
        return found[known]

    return digest_of
