"""The script finds the GPUs that it was asked for: ``torch.cuda`` answers for a device that is not there.

Its tensors are fake ones on ``cuda`` (natives.py), so what torch decides by the device - lists of autocast, kernels of
attention, fused optimizers, where a copy is needed - it decides as on that GPU.
"""

import collections
import contextlib
import types

from stepscope_dry import kernels, natives
from stepscope_dry.imports import when_imported

GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30, "capability": (9, 0), "processors": 132}
"""Where the options name none."""
HELD = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
        "max_memory_cached")  # fmt: skip
"""Functions that say how much memory is used."""

UNDONE = ("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
          "reset_max_memory_cached", "set_per_process_memory_fraction", "reset_peak_host_memory_stats")  # fmt: skip
"""Functions that have nothing to do here."""

VERSIONS = {"cuda": "12.8", "cudnn": 91002, "nccl": (2, 27, 3)}


def begin(session):
    import torch

    if session.on_host:
        return
    why_not = natives.begin()
    if why_not is not None:
        session.note("no-device", "torch {} cannot have CUDA tensors here ({}): the script sees a CPU".format(
            torch.__version__, why_not
        ))  # fmt: skip
        return
    session.parts["device"] = device = Device(session, torch)
    device.answer_module()
    device.answer_memory()
    device.answer_random()
    device.answer_tensors()
    device.answer_optimizers()
    device.refuse()
    kernels.begin(torch, device.gpu["capability"])


class Device:
    """The GPUs of this rank's node. index: the current one."""

    def __init__(self, session, torch):
        self.session, self.torch = session, torch
        self.gpu = {**GPU, **(session.options.get("device") or {})}
        self.gpu["capability"] = tuple(self.gpu["capability"])
        self.count, self.index = session.local, 0

    def enter(self):
        """Streams are made by then; the mode without data is on."""
        from stepscope_dry.streams import give

        torch, streams = self.torch, self.session.parts.get("streams")
        if streams is not None:
            give(streams, torch.cuda)
            torch.cuda.streams.Stream, torch.cuda.streams.Event = streams.Stream, streams.Event
            torch.cuda.ExternalStream = torch.cuda.streams.ExternalStream = streams.Stream

    def optimizer_begins(self, optimizer):
        self.session.device = next(p.device.type for group in optimizer.param_groups for p in group["params"])

    def number(self, device=None):
        """Return the index of a device as torch.cuda takes it."""
        if device is None or isinstance(device, int):
            return self.index if device is None or device < 0 else device
        device = self.torch.device(device) if isinstance(device, str) else device
        index = getattr(device, "idx", device) if not hasattr(device, "index") else device.index
        return self.index if index is None else index

    def give(self, module=None, **functions):
        """Put functions into torch.cuda, and wherever torch holds the one that they replace."""
        cuda = module or self.torch.cuda
        modules = [value for value in vars(cuda).values() if isinstance(value, types.ModuleType)]
        holders = [cuda, *(inner for inner in modules if inner.__name__.startswith("torch.cuda"))]
        for name, value in functions.items():
            before = getattr(cuda, name, None)
            setattr(cuda, name, value)
            for holder in holders:
                if before is not None and vars(holder).get(name) is before:
                    setattr(holder, name, value)

    def use(self, device):
        before, self.index = self.index, self.number(device)
        return before

    def exchange(self, index):
        return self.use(index) if index >= 0 else -1

    def answer_module(self):
        torch, session = self.torch, self.session
        cuda, nothing = torch.cuda, lambda *args, **kwargs: None
        major, minor = self.gpu["capability"]
        properties = types.SimpleNamespace(
            name=self.gpu["name"], major=major, minor=minor, total_memory=self.gpu["memory_bytes"],
            multi_processor_count=self.gpu["processors"], warp_size=32, max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536, shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
            shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, is_integrated=0, is_multi_gpu_board=0,
            gcnArchName=self.gpu["name"], uuid="00000000-0000-0000-0000-000000000000", pci_bus_id=0,
        )  # fmt: skip

        class Runtime:
            """The CUDA runtime: every call succeeds."""

            cudaError = types.SimpleNamespace(success=0)  # noqa: N815 - as CUDA names it

            def __getattr__(self, name):
                return lambda *args, **kwargs: 0

            def cudaMemGetInfo(self, device=None):  # noqa: N802 - as CUDA names it
                return cuda.mem_get_info(device)

        torch._C._cuda_getDeviceCount = lambda: self.count
        torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")
        torch._C._get_accelerator = lambda check=None: torch.device("cuda")
        torch.version.cuda = torch.version.cuda or VERSIONS["cuda"]
        self.give(
            is_available=lambda: True, is_initialized=lambda: True, _is_compiled=lambda: True, _is_in_bad_fork=lambda: False,
            init=nothing, _lazy_init=nothing, _lazy_call=nothing, _initialized=True, device_count=lambda: self.count,
            current_device=lambda: self.index, set_device=lambda device: self.use(device) and None,
            _exchange_device=self.exchange, _maybe_exchange_device=self.exchange,
            get_device_properties=lambda device=None: properties, get_device_name=lambda device=None: properties.name,
            get_device_capability=lambda device=None: (major, minor),
            is_bf16_supported=lambda *args, **kwargs: major >= 8, is_tf32_supported=lambda: major >= 8,
            get_arch_list=lambda: ["sm_{}{}".format(major, minor)], can_device_access_peer=lambda a, b: True,
            synchronize=self.synchronize, ipc_collect=nothing, set_sync_debug_mode=nothing, get_sync_debug_mode=lambda: 0,
            cudart=lambda: runtime, _sleep=nothing, utilization=lambda device=None: 0, temperature=lambda device=None: 0,
            power_draw=lambda device=None: 0, clock_rate=lambda device=None: 0, memory_usage=lambda device=None: 0,
            is_current_stream_capturing=lambda: False, current_blas_handle=lambda: 0,
        )  # fmt: skip
        runtime = Runtime()
        self.give(cuda.nvtx, **dict.fromkeys(("range_push", "range_pop", "range_end", "mark", "range_start"), nothing))
        cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
        cuda.nccl.version, cuda.nccl.is_available = lambda: VERSIONS["nccl"], lambda tensors: True
        cuda.profiler.start = cuda.profiler.stop = nothing
        torch.backends.cuda.is_built = torch.backends.cudnn.is_available = lambda: True
        torch.backends.cudnn.version = lambda: VERSIONS["cudnn"]
        torch.backends.cudnn.is_acceptable = lambda tensor: False  # its own kernels for recurrent layers are not there
        torch.distributed.is_nccl_available = lambda: True
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            for name, value in {
                "is_available": lambda: True, "device_count": lambda: self.count, "synchronize": self.synchronize,
                "current_device_index": lambda: self.index, "current_device_idx": lambda: self.index,
                "set_device_index": lambda device: self.use(device) and None,
                "set_device_idx": lambda device: self.use(device) and None,
                "current_stream": lambda device=None: cuda.current_stream(),
                "set_stream": lambda stream: cuda.set_stream(stream),
                "current_accelerator": lambda *args, **kwargs: torch.device("cuda"), "empty_cache": nothing,
                "memory_allocated": lambda device=None: cuda.memory_allocated(),
                "max_memory_allocated": lambda device=None: cuda.max_memory_allocated(),
                "memory_reserved": lambda device=None: cuda.memory_reserved(),
                "max_memory_reserved": lambda device=None: cuda.max_memory_reserved(),
                "memory_stats": lambda device=None: cuda.memory_stats(), "reset_peak_memory_stats": nothing,
            }.items():  # fmt: skip
                if hasattr(accelerator, name):
                    setattr(accelerator, name, value)
        session.gpu = self.gpu

    def synchronize(self, device=None):
        streams = self.session.parts.get("streams")
        if streams is not None:
            for stream in list(streams.alive):
                stream.synchronize()

    def answer_memory(self):
        """Numbers of the allocator, from what the dry run holds."""
        total, nothing = self.gpu["memory_bytes"], lambda *args, **kwargs: None

        def used(device=None):
            memory = self.session.parts.get("memory")
            blocks = [block for block, _ in list(memory.live.values())] if memory is not None else []
            return sum(block.size for block in blocks if block.device != "cpu")

        def stats(device=None):
            answer = collections.defaultdict(int)
            for kind in ("allocated", "active", "reserved"):
                answer.update({"{}_bytes.all.{}".format(kind, which): used() for which in ("current", "peak")})
            return answer

        self.give(
            memory_stats=stats, memory_stats_as_nested_dict=lambda device=None: collections.defaultdict(dict),
            memory_summary=lambda *args, **kwargs: "", memory_snapshot=lambda *args, **kwargs: [],
            mem_get_info=lambda device=None: (max(0, total - used()), total), list_gpu_processes=lambda device=None: "",
            get_allocator_backend=lambda: "native", get_per_process_memory_fraction=lambda device=None: 1.0,
            host_memory_stats=lambda: collections.defaultdict(int),
            **dict.fromkeys(HELD, used), **dict.fromkeys(UNDONE, nothing),
        )  # fmt: skip
        memory = self.torch.cuda.memory
        for name in ("_record_memory_history", "_dump_snapshot", "_set_allocator_settings"):
            setattr(memory, name, nothing)
        memory._snapshot = lambda *args, **kwargs: {"segments": [], "device_traces": []}

    def answer_random(self):
        torch, nothing = self.torch, lambda *args, **kwargs: None
        plain = torch.Generator

        class Generator(plain):
            """A generator of any device: without data nothing is drawn from it."""

            def __new__(cls, device="cpu"):
                made = plain.__new__(cls, device="cpu")
                made.asked = torch.device(device)
                return made

            @property
            def device(self):
                return self.asked

        Generator.__name__ = Generator.__qualname__ = "Generator"
        Generator.__module__ = "torch"
        torch.Generator = Generator
        torch.cuda.default_generators = tuple(Generator("cuda:{}".format(n)) for n in range(self.count))
        state = lambda device="cuda": torch.zeros(16, dtype=torch.uint8)  # noqa: E731
        self.give(
            manual_seed=nothing, manual_seed_all=nothing, seed=nothing, seed_all=nothing, initial_seed=lambda: 0,
            get_rng_state=state, get_rng_state_all=lambda: [state()] * self.count, set_rng_state=nothing,
            set_rng_state_all=nothing,
        )  # fmt: skip

    def answer_tensors(self):
        """What torch's fake tensors do not do."""
        torch = self.torch
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        FakeTensorMode.__deepcopy__ = lambda mode, memo: mode
        torch.Tensor.record_stream = lambda tensor, stream: None
        torch.Tensor.pin_memory = lambda tensor, device=None: tensor
        torch.UntypedStorage.pin_memory = torch.TypedStorage.pin_memory = lambda storage, device=None: storage
        swap = torch.utils.swap_tensors

        def swap_tensors(old, new):
            """Let a parameter keep its identity as it moves: ``module.to(device)``."""
            if not (isinstance(old, FakeTensor) and isinstance(new, FakeTensor)):
                swap(old, new)
            elif torch._has_compatible_shallow_copy_type(old, new):
                old.data = new.detach()
                old.fake_device = new.fake_device
            else:  # from meta: of another kind
                old.__dict__, new.__dict__ = new.__dict__, old.__dict__
                torch._C._swap_tensor_impl(old, new)

        torch.utils.swap_tensors = swap_tensors
        when_imported(
            "transformers.utils.import_utils", lambda module: setattr(module, "is_fake_tensor", lambda x: False)
        )

    def answer_optimizers(self):
        """A fake parameter is a parameter: optimizers choose as they do on the GPU."""
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.optim import optimizer
        from torch.utils import _foreach_utils

        optimizer._foreach_supported_types.append(FakeTensor)
        tensors = getattr(_foreach_utils, "_foreach_supported_types", None)
        if tensors is not None and FakeTensor not in tensors:
            tensors.append(FakeTensor)

    def refuse(self):
        """What cannot be run without a device."""
        torch, session = self.torch, self.session
        parallel = torch.nn.DataParallel.__init__

        def init_data_parallel(module, inner, device_ids=None, *args, **kwargs):
            if self.count > 1 and (device_ids is None or len(device_ids) > 1):
                session.fail(
                    "unsupported",
                    "DataParallel drives the GPUs of a node from one process, which a dry run does not follow",
                    fix="use DistributedDataParallel, or set device_ids to one GPU",
                )
            parallel(module, inner, device_ids, *args, **kwargs)

        torch.nn.DataParallel.__init__ = init_data_parallel

        class CUDAGraph:
            def __init__(self, *args, **kwargs):
                session.fail(
                    "unsupported",
                    "a CUDA graph is captured, which takes a GPU",
                    fix="switch the graph off for the dry run: its kernels are the same without it",
                )

        self.give(CUDAGraph=CUDAGraph, graph=CUDAGraph, make_graphed_callables=CUDAGraph)
