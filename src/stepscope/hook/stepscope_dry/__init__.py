"""What a dry run puts into the user's script: tensors without data, a process group without ranks, and a recorder.

This package runs in the script's process, which is one rank of a world that is not there. It uses the standard library and
the script's own torch (2.6 and later). What it writes is described in stepscope/records/dry_run.py.
"""

PARTS = ("values", "device", "shards", "repeats", "dtensor_lists", "streams", "groups", "memory", "experts",
         "operators", "dtensor", "work", "ddp", "fsdp1", "sync_batch_norm", "pipeline", "loaders", "compiled",
         "guards", "frameworks", "forced")  # fmt: skip
"""Modules, each with ``begin(session)``, in the order in which they begin."""


def install(options):
    """Begin the dry run in this process, once torch has been imported. options: of STEPSCOPE_HOOK's ``dry``."""
    import importlib

    from stepscope_dry.session import Session

    session = Session(options)
    for name in PARTS:
        if importlib.util.find_spec("stepscope_dry." + name) is not None:
            importlib.import_module("stepscope_dry." + name).begin(session)
    session.begin()
