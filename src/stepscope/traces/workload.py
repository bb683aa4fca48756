"""What kind of job a trace is of: its frameworks, whether an inference engine runs it, how its loader works, its graphs.

What the driver gives and takes of memory while the job runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from stepscope.records.trace_rules import DriverMemory, JobSigns
from stepscope.traces.blocking_calls import blocking, replays
from stepscope.traces.events import Category, Events, RankView, TraceMeta
from stepscope.traces.launches import launches_of

_BY_MODULE = {
    "accelerate": "accelerate", "transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning",
    "deepspeed": "deepspeed", "megatron": "megatron", "torchtitan": "torchtitan",
}  # fmt: skip
"""Package whose objects the hook of `stepscope profile` saw in use -> framework."""

_TRAINER = "transformers.Trainer"
"""Models of that package train in loops of all kinds; the options of its trainer are those of its trainer's jobs."""

_BY_NAME: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fsdp2", ("FSDP::",)), ("fsdp1", ("FullyShardedDataParallel.",)), ("ddp", ("DistributedDataParallel.",)),
    ("lightning", ("[pl][",)), ("megatron", ("megatron/",)), ("torchtitan", ("torchtitan/",)),
    ("deepspeed", ("deepspeed/",)), ("transformers", ("transformers/trainer.py",)),
    ("vllm", ("vllm/", "vllm::", "void vllm::", "_vllm_", "execute_context_", "execute_new_", "gpu_model_runner:")),
    ("sglang", ("sglang/", "sglang::", "sgl_kernel", "void sgl_", "step[DECODE", "step[EXTEND")),
    ("tensorrt_llm", ("tensorrt_llm/", "tensorrt_llm::", "void tensorrt_llm::", "trtllm::", "[Executor] _forward_step")),
    ("dali", ("DALI", "[DALI]", "nvidia/dali/")), ("ffcv", ("ffcv",)), ("tf_data", ("tf.data",)),
)  # fmt: skip
"""Framework, and how its annotations, operators, kernels and (with stacks) the files of its functions begin."""

ENGINES = ("vllm", "sglang", "tensorrt_llm")
"""Of these, those that answer requests. Often installed as sources: a path comes before the names of their files."""

_WRAPS = {
    "lightning": ("transformers", "accelerate"), "transformers": ("accelerate",), "megatron": ("transformers", "accelerate"),
    "torchtitan": ("transformers", "accelerate"),
}  # fmt: skip
"""Framework that runs the training loop -> those that it uses or imports inside: their options are not the job's."""

_SERVES = re.compile(
    r"paged_?attention|pagedkvcache|reshape_and_cache|batch(decode|prefill)with|masked_multihead_attention|kv_?(cache|buffer)"
    r"|splitkv|mla_decode|decode_attention|kernel_unified_attention|_fwd_(grouped_)?kernel_stage|req_to_token|top_?k_?top_?p"
    r"|^(void )?(\w+::)*(mmha_|xqa)|^(decode|prefill|extend|generat(e|ion))\b|forward_(decode|extend|prefill)|\bgen_reqs?\b"
)
"""What kernels, operators and annotations of any engine say, in small letters."""

_UPDATES = re.compile(r"backward|_bwd|bwd_|wgrad|adam|multi_tensor_apply|autograd::|optimizer\.|sgd")
"""What only a training has, in small letters."""

_LOADERS = {True: ("_MultiProcessingDataLoaderIter", ": _try_get_data"), False: ("_SingleProcessDataLoaderIter",)}
"""Whether a loader has worker processes, and what the names of its marks and (with stacks) functions hold."""

EXPORT = ".sqlite"

_TORCH = re.compile(r"\baten::|\bat::|\bat_cuda_detail|\bc10|torch|autograd::|triton_|vllm|sglang")
"""What names of a program that runs PyTorch say, in small letters."""

_SIGNS = (("serves", _SERVES), ("updates", _UPDATES), ("torch", _TORCH))

_GIVES_BACK = re.compile(r"Free|Release|Unmap|Unregister")


def frameworks_of(events: Events, meta: TraceMeta) -> tuple[str, ...]:
    """Keys of frameworks, sorted: by whose objects the job's hook saw alive, what it wraps its model in, and the names of
    its events. What is merely imported is not in use: a record without the objects names none of these."""
    model = meta.stepscope.get("model")
    facts = model if isinstance(model, dict) else {}
    objects = facts.get("objects")
    used = {str(name) for name in objects} if isinstance(objects, list) else set()
    packages = {name.partition(".")[0] for name in used}
    if _TRAINER not in used:
        packages.discard("transformers")
    frameworks = {_BY_MODULE[name] for name in packages if name in _BY_MODULE}
    frameworks |= {key for key, fact in (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2")) if facts.get(fact)}
    names = "\0".join(("", *events.names))  # one text: asking each of hundreds of names takes 50 times as long
    for key, begins in _BY_NAME:
        files = [f"/{begin}" for begin in begins if key in ENGINES and begin.endswith("/")]
        if any(text in names for text in (*(f"\0{begin}" for begin in begins), *files)):
            frameworks.add(key)
    inside = {key for outer, keys in _WRAPS.items() if outer in frameworks for key in keys}
    return tuple(sorted(frameworks - inside))


def job_signs(view: RankView, frameworks: Iterable[str] = ()) -> JobSigns:
    """What the names of a rank's events say of its job, which uses these frameworks."""
    events, launches = view.events, launches_of(view)
    used = events.codes(events.of(Category.KERNEL, Category.CPU_OP, Category.USER_ANNOTATION))
    signs = {sign for code in used for sign in _workload_signs(events.names[code])}
    loads = {workers: _time_in(events, parts) for workers, parts in _LOADERS.items()}
    replayed = launches.launch[launches.linked]
    return JobSigns(
        rank=view.rank,
        serves=not set(ENGINES).isdisjoint(frameworks) or "serves" in signs,
        updates="updates" in signs,
        loader_workers=loads[True] >= loads[False] if any(loads.values()) else None,
        replayed=float(events.named(replays)[replayed].mean()) if len(replayed) else 0.0,
        torch=view.trace.path.suffix != EXPORT or "torch" in signs,
    )


@lru_cache(maxsize=1 << 14)
def _workload_signs(name: str) -> tuple[str, ...]:
    """Return what a name speaks of: a server, a training, PyTorch."""
    lower = name.lower()
    return tuple(sign for sign, pattern in _SIGNS if pattern.search(lower))


def _time_in(events: Events, parts: tuple[str, ...]) -> int:
    return int(events.dur_ns[events.named(lambda name: any(part in name for part in parts))].sum())


def driver_memory(view: RankView) -> DriverMemory | None:
    """The calls for memory of a rank's driver; None without any."""
    events = view.events
    calls = np.flatnonzero(blocking(events, "memory"))
    if not len(calls):
        return None
    counts = np.bincount(events.name[calls])
    names = sorted(np.flatnonzero(counts).tolist(), key=lambda code: -counts[code])
    return DriverMemory(
        rank=view.rank,
        calls=tuple((events.names[code], int(counts[code])) for code in names),
        given_back=sum(int(counts[code]) for code in names if _GIVES_BACK.search(events.names[code])),
        kernels=int((events.category == Category.KERNEL).sum()),
    )
