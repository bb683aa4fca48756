"""What one change would do to a predicted step: another GPU, link, batch, precision, or perfect overlap."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.errors import UsageError
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.fabrics import find_fabric
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.layout import Layout
from stepscope.predict.what_if import UNITS, WhatIf


def changed(
    cluster: Cluster, layout: Layout, calibration: StepCalibration, what: WhatIf
) -> tuple[Cluster, Layout, StepCalibration]:
    """The three with ``what`` applied. batch: the micro-batch times a whole number, or the accumulation where it is none.

    Raises UsageError for what this model cannot obey.
    """
    if what.bucket_bytes is not None:
        raise UsageError("--what-if bucket needs --from or --buckets", why="a named model is priced layer by layer")
    if what.gpu is not None:
        gpu = known_gpu(what.gpu)
        cluster = replace(cluster, gpu=gpu, gpus_per_node=cluster.gpus_per_node)
    if what.link == "pcie":
        cluster = replace(cluster, gpu=replace(cluster.gpu, link=None))
    elif what.link is not None:
        cluster = replace(cluster, network=find_fabric(what.link), adapters_per_node=None)
    if what.batch is not None:
        layout = _batch(layout, what.batch)
    if what.precision is not None:
        layout = replace(layout, precision=UNITS.get(what.precision, what.precision))
    if what.overlap is not None:
        calibration = replace(calibration, tp_overlap=1.0, pp_overlap=1.0, ep_overlap=1.0, overlap_slowdown=1.0)
        layout = replace(layout, overlap=True, sync_each=False)
    return cluster, layout, calibration


def _batch(layout: Layout, factor: float) -> Layout:
    micro, whole = layout.micro_batch * factor, layout.global_batch * factor
    if micro >= 1 and micro == int(micro):
        return replace(layout, micro_batch=int(micro), global_batch=round(whole))
    if whole != int(whole) or int(whole) % (layout.dp * layout.micro_batch):
        raise UsageError(
            f"--what-if batch={factor:g}x leaves no whole micro-batches",
            why=f"micro-batch {layout.micro_batch}, {layout.micro_batches} a step and rank",
        )
    return replace(layout, global_batch=int(whole))
