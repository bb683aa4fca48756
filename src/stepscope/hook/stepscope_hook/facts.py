"""What the job is made of: model, wrappers, loaders, frameworks in use. One pass over living objects as step 1 ends.

A class is judged once; an object costs one look-up (about 0.1 us: 50 ms for half a million objects).
"""

import gc
import os
import shutil
import sys

from stepscope_hook.record import cores

USERS = {
    "transformers": ("Trainer", "PreTrainedModel"),
    "trl": ("SFTTrainer", "DPOTrainer", "GRPOTrainer", "PPOTrainer"),
    "peft": ("PeftModel",),
    "accelerate": ("Accelerator",),
    "lightning": ("Trainer", "LightningModule", "Fabric"),
    "pytorch_lightning": ("Trainer", "LightningModule"),
    "deepspeed": ("DeepSpeedEngine", "PipelineEngine"),
    "composer": ("Trainer", "ComposerModel"),
    "torchtitan": ("Trainer", "JobConfig"),
    "colossalai": ("Booster",),
}
"""Package -> classes whose living objects say that the job uses it, and does not merely import it."""
BY_MODULES = ("megatron", "transformer_engine", "apex", "nanotron", "torchtitan", "flash_attn", "xformers", "timm")
"""Packages in use where the model has a module of theirs."""

OPTIONS = {
    "fsdp": ("sharding_strategy", "forward_prefetch", "limit_all_gathers", "backward_prefetch"),
    "loader": ("num_workers", "pin_memory", "prefetch_factor", "batch_size", "persistent_workers", "in_order"),
    "ddp": ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
    "optimizer": ("fused", "foreach", "capturable"),
}


ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "KMP_AFFINITY", "KMP_BLOCKTIME", "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE",
)  # fmt: skip
"""Variables that say how fast a job runs; those that are set are recorded."""


class Objects:
    """Living objects of the classes that say something, by kind; in_use: ``package.Class`` of frameworks."""

    def __init__(self):
        self.of = {"module": [], "ddp": [], "fsdp": [], "fsdp2": [], "loader": [], "compiled": [], "stage": [],
                   "schedule": [], "iterator": []}  # fmt: skip
        self.in_use = set()
        by_kind = {}
        for instance in gc.get_objects():
            kind = type(instance)
            names = by_kind.get(id(kind))
            if names is None:
                try:
                    names = self.judge(kind)
                except Exception:  # a class that does not let itself be asked
                    names = ()
                by_kind[id(kind)] = names
            for name in names:
                self.of[name].append(instance)
        self.of["module"].sort(key=id)

    def judge(self, kind):
        """Return the names of the lists that objects of a class go into."""
        import torch

        names = []
        for base in getattr(kind, "__mro__", ()):
            package = str(getattr(base, "__module__", "")).partition(".")[0]
            if base.__name__ in USERS.get(package, ()):
                self.in_use.add(package + "." + base.__name__)
        if issubclass(kind, torch.nn.Module):
            names.append("module")
            package = str(kind.__module__).partition(".")[0]
            if package in BY_MODULES:
                self.in_use.add(package + "." + kind.__name__)
        for name, classes in self.classes().items():
            if any(issubclass(kind, parent) for parent in classes):
                names.append(name)
        return tuple(names)

    @staticmethod
    def classes():
        """Return those of torch's classes that are loaded."""
        import torch

        named = {
            "ddp": (torch.nn.parallel.DistributedDataParallel,),
            "fsdp": (_loaded("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),),
            "fsdp2": (_loaded("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"),
                      _loaded("torch.distributed._composable.fsdp.fully_shard", "FSDPModule")),
            "loader": (torch.utils.data.DataLoader,),
            "iterator": (_loaded("torch.utils.data.dataloader", "_BaseDataLoaderIter"),),
            "compiled": (_loaded("torch._dynamo.eval_frame", "OptimizedModule"),),
            "stage": (_loaded("torch.distributed.pipelining.stage", "_PipelineStageBase"),),
            "schedule": (_loaded("torch.distributed.pipelining.schedules", "_PipelineSchedule"),),
        }  # fmt: skip
        return {name: [kind for kind in classes if kind is not None] for name, classes in named.items()}


def model_facts(objects, optimizer):
    """Return JSON-able facts; a part that cannot be read is left out.

    frameworks: name -> version of those in use; objects: the classes that say so; imported: all that are merely there.
    """
    of = objects.of
    facts = {
        "frameworks": {name: version(name) for name in sorted({path.partition(".")[0] for path in objects.in_use})},
        "objects": sorted(objects.in_use),
        "imported": sorted(name for name in {*USERS, *BY_MODULES, "ray"} if name in sys.modules),
    }
    parts = (
        ("optimizer", lambda: optimizer_facts(optimizer)),
        ("ddp", lambda: counted(of["ddp"], _ddp)),
        ("fsdp", lambda: counted(of["fsdp"], lambda module: _attributes(module, OPTIONS["fsdp"]))),
        ("fsdp2", lambda: counted(of["fsdp2"], _fsdp2)),
        ("loaders", lambda: loaders_facts(of)),
        ("compiled", lambda: compiled_facts(of)),
        ("dtensor", lambda: dtensor_facts(optimizer)),
        ("pipeline", lambda: pipeline_facts(of)),
        ("machine", machine_facts),
        ("distributed", distributed_facts),
        ("settings", settings_facts),
        ("environment", lambda: {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}),
    )
    for name, read in parts:
        try:
            part = read()
        except Exception:  # another version of what is read: this part stays unknown
            continue
        if part:
            facts[name] = part
    return facts


def version(name):
    text = getattr(sys.modules.get(name), "__version__", None)
    return text if isinstance(text, str) else None


def optimizer_facts(optimizer):
    """Return the class, and by type of number how many parameters; devices: where they are; options: of its first group."""
    if optimizer is None:
        return None
    counts, devices = {}, set()
    for parameter in parameters_of(optimizer):
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        kind = str(parameter.dtype).replace("torch.", "")
        entry = counts.setdefault(kind, {"tensors": 0, "elements": 0, "local_elements": 0})
        entry["tensors"] += 1
        entry["elements"] += parameter.numel()
        entry["local_elements"] += local.numel()
        devices.add(parameter.device.type)
    first = optimizer.param_groups[0] if optimizer.param_groups else {}
    options = {
        name: first[name] for name in OPTIONS["optimizer"] if isinstance(first.get(name, ""), (bool, type(None)))
    }
    return {"class": type(optimizer).__name__, "parameters": counts, "devices": sorted(devices), "options": options}


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Orphan:
    """What an iterator still knows of a loader that is gone: ``for batch in DataLoader(...)``."""

    def __init__(self, iterator):
        for name in (*OPTIONS["loader"], "dataset"):
            setattr(self, name, getattr(iterator, "_" + name, None))
        self.batch_sampler = getattr(iterator, "_index_sampler", None)
        self.batch_size = getattr(self.batch_sampler, "batch_size", None)
        self.sampler = getattr(self.batch_sampler, "sampler", None)


def loaders_facts(of):
    """Return the facts of data loaders. iterating: those that something iterates as the first step ends: of validation no
    one does."""
    iterating = [Orphan(iterator) for iterator in of["iterator"]]
    facts = counted(of["loader"] or iterating, loader_facts)
    return facts and dict(facts, iterating=[loader_facts(loader) for loader in iterating[:8]])


def loader_facts(loader):
    facts = _attributes(loader, OPTIONS["loader"])
    for name in ("dataset", "sampler"):
        facts[name] = type(getattr(loader, name, None)).__name__
    kind = _loaded("torch.utils.data.distributed", "DistributedSampler")
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    kind_of_stream = _loaded("torch.utils.data", "IterableDataset")
    facts["iterable"] = kind_of_stream is not None and isinstance(getattr(loader, "dataset", None), kind_of_stream)
    facts["distributed_sampler"] = kind is not None and (isinstance(sampler, kind) or isinstance(inner, kind))
    if not isinstance(loader, Orphan):
        facts["class"] = type(loader).__name__
    return facts


def compiled_facts(of):
    """Count what is compiled. modules: wrapped by torch.compile; in_place: compiled with module.compile()."""
    in_place = sum(getattr(module, "_compiled_call_impl", None) is not None for module in of["module"])
    modules = len(of["compiled"])
    return {"modules": modules, "in_place": in_place} if modules or in_place else None


def dtensor_facts(optimizer):
    """Say how the parameters that are DTensors are placed on which mesh."""
    by_placement = {}
    for parameter in parameters_of(optimizer) if optimizer is not None else ():
        if hasattr(parameter, "device_mesh") and hasattr(parameter, "placements"):
            mesh = parameter.device_mesh
            names = getattr(mesh, "mesh_dim_names", None)
            key = (tuple(names or ()), tuple(int(n) for n in mesh.mesh.shape), tuple(map(str, parameter.placements)))
            entry = by_placement.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += parameter.numel()
    return [
        {
            "mesh_dims": list(names),
            "mesh_shape": list(shape),
            "placements": list(placed),
            "tensors": n,
            "elements": size,
        }
        for (names, shape, placed), (n, size) in sorted(by_placement.items())
    ]


def pipeline_facts(of):
    if not of["stage"]:
        return None
    schedules = [{"class": type(schedule).__name__, "microbatches": getattr(schedule, "_n_microbatches", None)}
                 for schedule in of["schedule"]]  # fmt: skip
    stages = [[getattr(stage, "stage_index", None), getattr(stage, "num_stages", None)] for stage in of["stage"]]
    return {"stages": sorted(stages), "schedules": schedules}


def machine_facts():
    import torch

    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores": cores(),
        "cuda": bool(torch.cuda.is_available()),
    }


def distributed_facts():
    """Return the backend of the default process group; nothing where there is none."""
    import torch

    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return {"backend": str(distributed.get_backend())}


def settings_facts():
    """Return switches of torch and of Python as they are after the first step. start_method: of worker processes; compiler:
    whether there is one of C++, which torch.compile calls for code on CPUs."""
    import multiprocessing

    import torch

    matmul = getattr(getattr(torch.backends, "cuda", None), "matmul", None)
    return {
        "matmul_precision": torch.get_float32_matmul_precision(),
        "matmul_tf32": _attributes(matmul, ("allow_tf32",))["allow_tf32"],
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
        "gc": gc.isenabled(),
        "gc_frozen": gc.get_freeze_count(),
        "start_method": multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        "compiler": any(shutil.which(compiler) for compiler in (os.environ.get("CXX") or "g++", "clang++")),
    }


def counted(objects, facts):
    return (
        {"count": len(objects), "first": facts(objects[0]), "all": [facts(e) for e in objects[:8]]} if objects else None
    )


def _ddp(module):
    facts = _attributes(module, OPTIONS["ddp"])
    cap = getattr(module, "bucket_bytes_cap", None)
    hooks = [getattr(hook[0], "__name__", "?") for hook in getattr(module, "_comm_hooks", ())]
    return dict(facts, bucket_cap_bytes=cap if isinstance(cap, int) else None, comm_hooks=hooks)


def _fsdp2(module):
    """Return the facts of a unit. resharded: whether it gives its gathered parameters back after its forward pass; None: it
    has none."""
    groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())
    return {
        "class": type(module).__name__,
        "resharded": any(group.post_forward_mesh_info is not None for group in groups) if groups else None,
    }


def _loaded(module, name):
    return getattr(sys.modules.get(module), name, None)


def _attributes(owner, names):
    values = {name: getattr(owner, name, None) for name in names}
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
