"""What an option is called in the user's own framework: a table, and what of it a job is told."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.diagnose.advised import Condition
from stepscope.diagnose.rule import advise
from stepscope.records.finding import Advice
from stepscope.records.trace_summary import TraceSummary

NAMES = {
    "fsdp2": "FSDP2", "fsdp1": "FSDP1", "ddp": "DDP", "transformers": "HF Trainer", "accelerate": "accelerate",
    "lightning": "Lightning", "deepspeed": "DeepSpeed", "megatron": "Megatron-LM", "torchtitan": "torchtitan",
    "vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM",
    "dali": "DALI", "ffcv": "FFCV", "tf_data": "tf.data",
}  # fmt: skip

LOADERS = frozenset({"dali", "ffcv", "tf_data"})
"""Of these, those that load batches themselves: the options of torch's loader are not theirs."""

SOURCES = {
    "fsdp2": "pytorch.org/docs, torch.distributed.fsdp.fully_shard (torch 2.6 and later)",
    "fsdp1": "pytorch.org/docs, torch.distributed.fsdp.FullyShardedDataParallel",
    "ddp": "pytorch.org/docs, torch.nn.parallel.DistributedDataParallel",
    "transformers": "huggingface.co/docs/transformers, TrainingArguments",
    "accelerate": "huggingface.co/docs/accelerate, FullyShardedDataParallelPlugin and DistributedDataParallelKwargs",
    "lightning": "lightning.ai/docs, strategies DDPStrategy and FSDPStrategy: arguments of the wrapped class are passed on",
    "deepspeed": "deepspeed.ai/docs/config-json",
    "megatron": "Megatron-LM, megatron/training/arguments.py",
    "torchtitan": "torchtitan, torchtitan/config/job_config.py",
    "vllm": "docs.vllm.ai, engine arguments",
    "sglang": "docs.sglang.ai, server arguments",
    "tensorrt_llm": "nvidia.github.io/TensorRT-LLM, arguments of the LLM API",
    "dali": "docs.nvidia.com/deeplearning/dali, Pipeline",
    "ffcv": "docs.ffcv.io, Loader",
    "tf_data": "tensorflow.org/guide/data_performance",
}
"""Where each framework's options are documented."""

_FSDP1_ONLY = {("forward prefetch", "transformers"), ("forward prefetch", "accelerate"),
               ("backward prefetch", "transformers"), ("backward prefetch", "accelerate")}  # fmt: skip
"""Options of FSDP1 that FSDP2 does not have."""

OPTIONS: dict[str, dict[str, str]] = {
    "forward prefetch": {
        "fsdp2": "block.set_modules_to_forward_prefetch([next_block]) on every block",
        "fsdp1": "FullyShardedDataParallel(forward_prefetch=True)",
        "transformers": 'fsdp_config={"forward_prefetch": true}',
        "accelerate": "fsdp_forward_prefetch: true",
        "lightning": "FSDPStrategy(forward_prefetch=True)",
        "deepspeed": "a larger stage3_prefetch_bucket_size, overlap_comm: true",
        "megatron": "--overlap-param-gather",
    },
    "backward prefetch": {
        "fsdp2": "block.set_modules_to_backward_prefetch([previous_block]) on every block",
        "fsdp1": "backward_prefetch=BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True",
        "transformers": 'fsdp_config={"backward_prefetch": "backward_pre"}',
        "accelerate": "fsdp_backward_prefetch: BACKWARD_PRE",
        "lightning": "FSDPStrategy(backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
        "deepspeed": "a larger stage3_prefetch_bucket_size, overlap_comm: true",
    },
    "larger units": {
        "fsdp2": "fully_shard([block_0, block_1]) makes one unit of several blocks",
        "fsdp1": "auto_wrap_policy=size_based_auto_wrap_policy with a larger min_num_params",
        "transformers": 'fsdp_config={"min_num_params": ...}',
        "accelerate": "fsdp_auto_wrap_policy: SIZE_BASED_WRAP with fsdp_min_num_params",
        "lightning": "FSDPStrategy(auto_wrap_policy=...)",
        "deepspeed": "a larger stage3_param_persistence_threshold keeps small parameters on every rank",
    },
    "keep gathered": {
        "fsdp2": "fully_shard(block, reshard_after_forward=False)",
        "fsdp1": "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
        "transformers": 'fsdp_config={"reshard_after_forward": false} (FSDP1: fsdp="shard_grad_op")',
        "accelerate": "fsdp_reshard_after_forward: false (FSDP1: SHARD_GRAD_OP)",
        "lightning": 'FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")',
        "deepspeed": "zero_optimization stage: 2",
        "torchtitan": 'parallelism.fsdp_reshard_after_forward = "never"',
    },
    "split root": {
        "fsdp2": "fully_shard(model.embedding) and fully_shard(model.head) before fully_shard(model)",
        "fsdp1": "an auto_wrap_policy that also wraps embeddings and the head",
        "accelerate": "fsdp_transformer_layer_cls_to_wrap with the classes of embeddings and head",
    },
    "wrap blocks": {
        "fsdp2": "fully_shard(block) for every block before fully_shard(model)",
        "fsdp1": "an auto_wrap_policy that wraps every block: transformer_auto_wrap_policy",
        "transformers": 'fsdp="full_shard auto_wrap" with fsdp_config={"transformer_layer_cls_to_wrap": [...]}',
        "accelerate": "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "lightning": "FSDPStrategy(auto_wrap_policy={Block})",
    },
    "less copying": {
        "fsdp2": "MixedPrecisionPolicy(param_dtype=torch.bfloat16) halves the gathered bytes; reshard_after_forward=False "
        "copies out once a step; a shard_placement_fn other than Shard(0) copies again",
        "accelerate": "mixed_precision: bf16; fsdp_reshard_after_forward: false",
        "transformers": 'bf16=True; fsdp_config={"reshard_after_forward": false}',
        "torchtitan": 'training.mixed_precision_param = "bfloat16"; parallelism.fsdp_reshard_after_forward = "never"',
    },
    "no offload": {
        "fsdp2": "fully_shard without offload_policy=CPUOffloadPolicy() where memory has room",
        "fsdp1": "FullyShardedDataParallel without cpu_offload=CPUOffload(offload_params=True) where memory has room",
        "transformers": 'fsdp without "offload"; fsdp_config={"offload_params": false}',
        "accelerate": "fsdp_offload_params: false",
        "lightning": "FSDPStrategy(cpu_offload=False)",
        "deepspeed": "zero_optimization without offload_param; offload_optimizer alone moves less",
        "torchtitan": "training.enable_cpu_offload = false",
    },
    "bucket size": {
        "ddp": "DistributedDataParallel(bucket_cap_mb=...)",
        "transformers": "ddp_bucket_cap_mb",
        "accelerate": "DistributedDataParallelKwargs(bucket_cap_mb=...)",
        "lightning": "DDPStrategy(bucket_cap_mb=...)",
        "deepspeed": "reduce_bucket_size",
        "megatron": "--ddp-bucket-size",
    },
    "loader workers": {
        "transformers": "TrainingArguments(dataloader_num_workers=...)",
        "megatron": "--num-workers",
        "dali": "Pipeline(num_threads=..., prefetch_queue_depth=...)",
        "ffcv": "Loader(num_workers=..., batches_ahead=...)",
        "tf_data": "dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)",
    },
    "keep workers": {
        "transformers": "TrainingArguments(dataloader_persistent_workers=True)",
    },
    "pin batches": {
        "transformers": "TrainingArguments(dataloader_pin_memory=True)",
    },
    "accumulate": {
        "transformers": "TrainingArguments(gradient_accumulation_steps=...)",
        "accelerate": "Accelerator(gradient_accumulation_steps=...) and `with accelerator.accumulate(model):`",
        "lightning": "Trainer(accumulate_grad_batches=...)",
        "deepspeed": "gradient_accumulation_steps",
        "torchtitan": "training.global_batch_size above local_batch_size x data-parallel ranks",
        "megatron": "--global-batch-size above --micro-batch-size x data-parallel ranks",
        "ddp": "`with model.no_sync():` around all micro-steps but the last",
        "fsdp2": "model.set_requires_gradient_sync(False) before all micro-steps but the last",
        "fsdp1": "`with model.no_sync():` around all micro-steps but the last",
    },
    "smaller messages": {
        "ddp": "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        "accelerate": "DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)",
        "lightning": "DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)",
        "deepspeed": 'communication_data_type: "bf16"',
    },
    "compile": {
        "transformers": "TrainingArguments(torch_compile=True)",
        "accelerate": 'dynamo_backend: "INDUCTOR"',
        "torchtitan": "compile.enable = true",
        "vllm": "-O3, which compiles and fuses",
        "sglang": "--enable-torch-compile",
        "tensorrt_llm": "torch_compile_config",
    },
    "cuda graphs": {
        "vllm": "start without --enforce-eager; --cuda-graph-sizes has the sizes that are captured",
        "sglang": "start without --disable-cuda-graph; --cuda-graph-bs has the sizes that are captured",
        "tensorrt_llm": "cuda_graph_config with the batch sizes that occur",
    },
    "larger batch": {
        "vllm": "--max-num-seqs, --max-num-batched-tokens",
        "sglang": "--max-running-requests, --chunked-prefill-size",
        "tensorrt_llm": "max_batch_size, max_num_tokens",
    },
    "fewer waits for the device": {
        "vllm": "--async-scheduling",
        "sglang": "start without --disable-overlap-schedule",
        "tensorrt_llm": "start without disable_overlap_scheduler",
    },
    "micro-batches": {
        "deepspeed": "a smaller train_micro_batch_size_per_gpu with the same train_batch_size",
        "megatron": "a smaller --micro-batch-size with the same --global-batch-size",
        "torchtitan": "a smaller parallelism.pipeline_parallel_microbatch_size",
    },
    "interleave stages": {
        "megatron": "--num-layers-per-virtual-pipeline-stage",
        "torchtitan": 'parallelism.pipeline_parallel_schedule = "Interleaved1F1B"',
    },
    "balance stages": {
        "deepspeed": 'PipelineModule(partition_method="parameters") or a profile of layer times',
        "megatron": "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers",
        "torchtitan": "parallelism.module_fqns_per_model_part",
    },
    "balance experts": {
        "deepspeed": "MoE(capacity_factor=..., drop_tokens=True) and the auxiliary loss l_aux in the loss",
        "megatron": "--moe-router-load-balancing-type aux_loss, --moe-aux-loss-coeff, --moe-expert-capacity-factor",
    },
}
"""What is to be done -> framework -> what it is called there; ``SOURCES`` document it."""


_OUTERMOST = (
    "dali",
    "ffcv",
    "tf_data",
    "vllm",
    "sglang",
    "tensorrt_llm",
    "lightning",
    "transformers",
    "torchtitan",
    "megatron",
    "accelerate",
    "fsdp2",
    "fsdp1",
    "ddp",
)
"""Who takes the options of a job that uses several: a trainer before what it wraps the model in."""


_TRAINERS = ("lightning", "torchtitan", "megatron", "transformers")
"""Who owns the loop, the first one of a job: it takes no options of another."""

_TRAINER_OBJECTS = ("transformers.Trainer", "trl.")


def used_in(summary: TraceSummary) -> frozenset[str]:
    """The frameworks that the ranks' traces show."""
    frameworks = frozenset(name for p in summary.ranks for name in p.facts.frameworks)
    return used_by(
        frameworks, {name for p in summary.ranks if p.facts.setup is not None for name in p.facts.setup.objects}
    )


def used_by(names: Iterable[str], objects: Iterable[str]) -> frozenset[str]:
    """Return those of these frameworks whose options a job with these objects (``package.Class``) takes: a model of
    transformers without its Trainer has none of them. Two names of Lightning are one."""
    frameworks = {"lightning" if name == "pytorch_lightning" else name for name in names}
    there = set(objects)
    if there and not any(name.startswith(_TRAINER_OBJECTS) for name in there):
        frameworks -= {"transformers"}
    return frozenset(frameworks)


def speaks(topic: str, used: Iterable[str]) -> str | None:
    """Return the framework whose option a job sets: DeepSpeed, which replaces the wrapper, else the outermost with one."""
    options, frameworks = OPTIONS[topic], set(used)
    only_fsdp1 = {key for of, key in _FSDP1_ONLY if of == topic} if "fsdp2" in frameworks else set()
    owner = next((key for key in _TRAINERS if key in frameworks), None)
    others = {*_TRAINERS, *(("accelerate",) if owner == "lightning" else ())} - {owner} if owner else set()
    return next(
        (key for key in ("deepspeed", *_OUTERMOST) if key in frameworks & options.keys() - only_fsdp1 - others), None
    )


def option(topic: str, used: Iterable[str], *, plain: str) -> str:
    """Return what to set, in the words of the job's framework; ``plain``: of torch itself, where none has an option."""
    key = speaks(topic, used)
    return plain if key is None else _framework_option_text(topic, key)


def in_words_of(
    topic: str,
    used: Iterable[str],
    *,
    otherwise: Iterable[str] = (),
    plain: str = "",
    only_for: tuple[Condition, ...] = (),
) -> tuple[Advice, ...]:
    """Return the option of the framework that takes it; where none of a job's does, one advice each of ``otherwise``, or
    what torch has (``plain``)."""
    key = speaks(topic, used)
    named = [key] if key is not None else [k for k in otherwise if k in OPTIONS[topic]]
    texts = [_framework_option_text(topic, key) for key in named] or [plain] * bool(plain)
    return tuple(advise(text, key=topic, only_for=only_for) for text in texts)


def _framework_option_text(topic: str, framework: str) -> str:
    only = " (FSDP1 only)" if (topic, framework) in _FSDP1_ONLY else ""
    return f"{NAMES[framework]}: {OPTIONS[topic][framework]}{only}"
