"""Data sets: find the files, check them, prepare arrays. No torch; one file per data set."""

from stepscope.core.registry import Registry
from stepscope.datasets._common import Dataset, Prepared, Split

__all__ = ["REGISTRY", "Dataset", "Prepared", "Split"]

REGISTRY: Registry[Dataset] = Registry("stepscope.datasets", "DATASET", "dataset")
