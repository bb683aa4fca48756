"""Kernels by name: how often, how long, what kind, and whether they use the matrix units."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_work import KernelRow, KernelTable
from stepscope.traces.classify import Work, work_of
from stepscope.traces.events import Category, RankTrace

Ints = NDArray[np.int64]

_WORK = {Work.COMPUTE: "compute", Work.COMMUNICATION: "communication"}

_VECTOR_UNITS: tuple[tuple[str, str], ...] = (
    (r"simt|_ffma|_dfma|_fma_", "CUTLASS and cuDNN name the scalar path"),
    (r"(^|_|\b)(sgemm|dgemm|scudnn|cgemm|zgemm|gcgemm)|gemv(n|t|x|NSP)|convolve_sgemm", "classic cuBLAS, cuDNN"),
    (r"elementwise|multi_tensor_apply|reduce_kernel|CatArrayBatchedCopy|softmax_warp|_pool_", "ATen"),
    (r"batch_norm|layer_norm|LayerNorm|RowwiseMoments|GammaBeta|indexSelect|dropout|bn_(fw|bw)_", "ATen, cuDNN"),
    (r"DeviceRadixSort|DeviceScan|DeviceReduce|DeviceSelect|splitKreduce|ReduceSplitK", "CUB, cuBLAS, CUTLASS"),
    (r"nchwToNhwc|nhwcToNchw|transpose_|fft2d|computeOffsets", "layout changes, FFT"),
    (r"^Cijk_(?!.*_MI\d+x\d+).*_TT\d+_\d+", "Tensile with thread tiles"),
)  # fmt: skip
"""Pattern of names that say a kernel does without the matrix units, and who writes them."""

_MATRIX_UNITS: tuple[tuple[str, str], ...] = (
    (r"_tensorop|OpClassTensorOp|MmaTensorOp|tensor\d+x\d+x\d+", "CUTLASS, cuDNN: _tensor16x8x8"),
    (r"(^|[_a-z])[a-z]?(884|1688|16816|16832|161616)(gemm|cudnn|fprop|dgrad|wgrad|_)", "cuBLAS: h884gemm, s16816gemm"),
    (r"[hibdq]mma(?![a-z])|wgmma|tcgen05|utcmma|wmma", "instruction named: hmma, imma, wgmma"),
    (r"xmma", "cuDNN, cuBLAS, unless the scalar path is named"),
    (r"^nvjet_", "cuBLAS on Hopper and later"),
    (r"flash_(fwd|bwd)|fmha_|cudnn_generated_fort_native_sdpa|device_kernel.*Sm(90|100)", "attention, CUTLASS 3"),
    (r"_MI\d+x\d+x\d+|mfma|xdl(ops)?|igemm_(fwd|bwd|wrw)_gtcx", "Tensile, CK, MIOpen: AMD matrix cores"),
)  # fmt: skip
"""Pattern of names that say a kernel uses the matrix units (tensor cores, AMD matrix cores), and who writes them."""

_SCALAR_PATH = re.compile(r"simt|_ffma|_dfma")
_VECTOR = re.compile("|".join(f"(?:{p})" for p, _ in _VECTOR_UNITS))
_MATRIX = re.compile("|".join(f"(?:{p})" for p, _ in _MATRIX_UNITS))


def uses_tensor_cores(kernel_name: str) -> bool | None:
    """Whether a kernel multiplies on the matrix units, as far as its name tells; None where it does not.

    A name that says neither stays unknown: kernels of Triton or of one's own are named as their author liked.
    """
    if _SCALAR_PATH.search(kernel_name):
        return False
    if _MATRIX.search(kernel_name):
        return True
    return False if _VECTOR.search(kernel_name) else None


def kernel_table(trace: RankTrace, *, limit: int | None = None, indices: Ints | None = None) -> KernelTable | None:
    """The rank's kernels by total time, or only those among ``indices``; None when the trace has no kernels.

    Durations of kernels that run at one time on several streams all count.
    """
    events = trace.events
    chosen = events.where(Category.KERNEL)
    if indices is not None:
        chosen = np.intersect1d(chosen, indices, assume_unique=True)
    if not len(chosen):
        return None
    names, durations, work = events.name[chosen], events.dur_ns[chosen], work_of(events)[chosen]
    order = np.lexsort((durations, names))
    names, durations, work = names[order], durations[order], work[order]
    first = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    last = np.append(first[1:], len(names)) - 1
    calls = last - first + 1
    totals = np.add.reduceat(durations, first)
    medians = (durations[first + (calls - 1) // 2] + durations[first + calls // 2]) / 2
    total = int(totals.sum())
    tensor = [uses_tensor_cores(events.names[int(names[i])]) for i in first]
    ranked = np.argsort(-totals, kind="stable")
    shown = ranked if limit is None else ranked[:limit]
    left = ranked[len(shown) :]
    rows = tuple(
        KernelRow(
            rank=trace.rank,
            name=events.names[int(names[first[i]])],
            work=_WORK[Work(int(work[first[i]]))],
            tensor_cores=tensor[i],
            calls=int(calls[i]),
            total_ns=int(totals[i]),
            min_ns=int(durations[first[i]]),
            max_ns=int(durations[last[i]]),
            mean_ns=float(totals[i] / calls[i]),
            median_ns=float(medians[i]),
            share=float(totals[i] / total) if total else 0.0,
        )
        for i in shown.tolist()
    )
    computes = work[first] == Work.COMPUTE
    shares = _tensor_shares(totals, computes, tensor)
    return KernelTable(
        rank=trace.rank,
        rows=rows,
        total_ns=total,
        left_out_names=len(left),
        left_out_calls=int(calls[left].sum()),
        left_out_ns=int(totals[left].sum()),
        tensor_core_share=shares[0],
        other_share=shares[1],
        unknown_share=shares[2],
    )


def _tensor_shares(
    totals: Ints, computes: NDArray[np.bool_], tensor: list[bool | None]
) -> tuple[float | None, float | None, float | None]:
    compute_ns = int(totals[computes].sum())
    if not compute_ns:
        return None, None, None

    def share(wanted: bool | None) -> float:
        mine = np.array([t is wanted for t in tensor], dtype=bool) & computes
        return float(totals[mine].sum() / compute_ns)

    return share(True), share(False), share(None)
