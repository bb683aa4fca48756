"""What the strategies declare, without torch: plans, memory, requirements, options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import stepscope
from stepscope.core.errors import UsageError
from stepscope.records.plan import CommOp, ModelFacts, ParameterFact, Setting
from stepscope.strategies import MIB, REGISTRY, assign_buckets

SETTING = Setting(device="cpu", backend="gloo", world_size=2, precision="fp32", optimizer="sgd")


def parameter(name: str, *shape: int, dtype: str = "float32") -> ParameterFact:
    numel = 1
    for size in shape:
        numel *= size
    return ParameterFact(name=name, numel=numel, dtype=dtype, shape=shape)


def facts(*parameters: ParameterFact) -> ModelFacts:
    """Gradients become ready in reverse order of registration."""
    order = tuple(reversed(range(len(parameters))))
    return ModelFacts(parameters=parameters, ready_order=order, forward_flops_per_sample=0)


MODEL = facts(
    parameter("a.weight", 64, 32), parameter("a.bias", 64), parameter("b.weight", 8, 64), parameter("b.bias", 8)
)


def plan(key: str, model: ModelFacts = MODEL, setting: Setting = SETTING, **options: Any) -> tuple[CommOp, ...]:
    spec = REGISTRY.load(key)
    return spec.comm_plan(model, setting, spec.options(**options))


def refusal(key: str, model: ModelFacts = MODEL, setting: Setting = SETTING, **options: Any) -> str | None:
    spec = REGISTRY.load(key)
    return spec.requires(model, setting, spec.options(**options))


def numels(ops: tuple[CommOp, ...]) -> list[int]:
    return [op.numel for op in ops]


def test_specs_and_implementations_have_the_same_stems() -> None:
    root = Path(stepscope.__file__).parent

    def stems(folder: Path) -> set[str]:
        return {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}

    assert stems(root / "strategies") == stems(root / "rank" / "strategies")
    assert {"single", "naive", "interleaved", "bucketed", "ddp"} <= set(REGISTRY.names())


@pytest.mark.parametrize("key", REGISTRY.names())
def test_a_spec_has_its_stem_as_key_and_variants_that_its_options_accept(key: str) -> None:
    spec = REGISTRY.load(key)
    assert spec.key == key
    assert spec.summary
    assert spec.variants
    for variant in spec.variants:
        options = spec.options(**variant)
        assert spec.min_warmup_steps(options) >= 1
        assert spec.tolerance(options) >= 0


@pytest.mark.parametrize(
    "key", [k for k in REGISTRY.names() if REGISTRY.load(k).collective and not REGISTRY.load(k).sharded]
)
def test_every_gradient_travels_exactly_once(key: str) -> None:
    spec = REGISTRY.load(key)
    for variant in spec.variants:
        if variant.get("hook") == "powersgd":
            continue  # a compressed matrix travels as two factors
        options = spec.options(**variant)
        if spec.requires(MODEL, SETTING, options) is not None:
            continue
        ops = tuple(op for op in spec.comm_plan(MODEL, SETTING, options) if op.op in ("all_reduce", "reduce_scatter"))
        assert sorted(name for op in ops for name in op.members) == sorted(p.name for p in MODEL.parameters)
        assert sum(numels(ops)) == MODEL.num_parameters


def test_single_sends_nothing_and_refuses_company() -> None:
    assert plan("single") == ()
    assert refusal("single", setting=replace(SETTING, world_size=1)) is None
    assert "one rank" in (refusal("single") or "")


def test_naive_flat_is_one_reduction_per_dtype() -> None:
    assert numels(plan("naive", flat=True)) == [MODEL.num_parameters]
    mixed = facts(parameter("a", 4), parameter("b", 3, dtype="bfloat16"), parameter("c", 2))
    assert [(op.numel, op.dtype) for op in plan("naive", mixed, flat=True)] == [(6, "float32"), (3, "bfloat16")]


def test_autocast_has_an_order_of_readiness_of_its_own() -> None:
    model = replace(MODEL, ready_order_autocast=(2, 3, 0, 1))
    autocast = replace(SETTING, precision="amp_bf16")
    assert [op.members[0] for op in plan("interleaved", model, autocast)] == [
        "b.weight",
        "b.bias",
        "a.weight",
        "a.bias",
    ]
    assert plan("interleaved", model, replace(SETTING, precision="bf16")) == plan("interleaved", model)
    for key in ("bucketed", "ddp"):
        caps = {"bucket_cap_mb": 2000 / MIB}
        assert numels(plan(key, model, autocast, **caps)) == [512, 8 + 2048, 64]
        assert numels(plan(key, model, **caps)) == [520, 64 + 2048]


def test_bucketed_fills_buckets_in_order_of_readiness_and_closes_at_the_cap() -> None:
    # Bytes in order of readiness: 32, 2048, 256, 8192.
    assert numels(plan("bucketed", bucket_cap_mb=2000 / MIB)) == [520, 64 + 2048]
    assert numels(plan("bucketed", bucket_cap_mb=2080 / MIB)) == [520, 64 + 2048]
    assert numels(plan("bucketed", bucket_cap_mb=2081 / MIB)) == [520 + 64, 2048]
    assert numels(plan("bucketed")) == [MODEL.num_parameters]


def test_a_parameter_larger_than_the_cap_is_never_split() -> None:
    assert assign_buckets([("float32", 4), ("float32", 100), ("float32", 4)], order=[0, 1, 2], caps_bytes=[8]) == (
        (0, 1),
        (2,),
    )


def test_ddp_without_a_size_has_a_small_first_bucket_as_torch() -> None:
    layer = 512 * 1024 // 4  # half a MiB of float32 each
    model = facts(*(parameter(f"p{i}", layer) for i in range(60)))
    assert numels(plan("ddp", model)) == [2 * layer, 50 * layer, 8 * layer]
    assert numels(plan("ddp", model, bucket_cap_mb=25.0)) == [50 * layer, 10 * layer]


@pytest.mark.parametrize(("hook", "dtype"), [("none", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_a_compression_hook_halves_the_bytes_on_the_wire(hook: str, dtype: str) -> None:
    (op,) = plan("ddp", hook=hook)
    assert (op.numel, op.dtype) == (MODEL.num_parameters, dtype)
    assert op.size_bytes == MODEL.gradient_bytes // (1 if hook == "none" else 2)


def test_powersgd_sends_small_tensors_whole_and_matrices_as_two_factors() -> None:
    whole, left, right = plan("ddp", hook="powersgd", powersgd_rank=2)
    # 64 x 32: (64 + 32) * 2 * 2 < 2048. 8 x 64: (8 + 64) * 2 * 2 < 512.
    assert (whole.numel, whole.members) == (8 + 64, ("b.bias", "a.bias"))
    assert (left.numel, left.members) == (2 * (8 + 64), ("b.weight", "a.weight"))
    assert right.numel == 2 * (64 + 32)


def test_powersgd_leaves_a_matrix_whole_when_compressing_saves_less_than_half() -> None:
    whole, left, right = plan("ddp", facts(parameter("w", 8, 8)), hook="powersgd", powersgd_rank=2)
    assert (whole.numel, left.numel, right.numel) == (64, 0, 0)


def test_powersgd_with_several_buckets_on_gloo_is_refused_with_a_size_that_works() -> None:
    small = {"hook": "powersgd", "bucket_cap_mb": 2000 / MIB}
    reason = refusal("ddp", **small)
    assert "hangs on gloo" in reason
    assert refusal("ddp", setting=replace(SETTING, backend="nccl", device="cuda"), **small) is None

    large = facts(*(parameter(f"p{i}", 1024, 1000) for i in range(9)))
    reason = refusal("ddp", large, hook="powersgd")  # torch's default: 1 MiB, then 25
    advised = float(reason.split("bucket_cap_mb to ")[1].split()[0])
    assert refusal("ddp", large, hook="powersgd", bucket_cap_mb=advised) is None


def test_powersgd_must_start_inside_the_warm_up() -> None:
    def fixed(steps: int | None) -> str | None:
        setting = replace(SETTING, warmup_steps=steps)
        return refusal("ddp", setting=setting, hook="powersgd", powersgd_start_iter=5)

    assert "at least 6 warm-up steps instead of 5" in (fixed(5) or "")
    assert fixed(6) is None
    assert fixed(None) is None  # found by measurement, which min_warmup_steps bounds from below
    spec = REGISTRY.load("ddp")
    assert spec.min_warmup_steps(spec.options(hook="powersgd", powersgd_start_iter=5)) == 6


def test_powersgd_and_loss_scaling_are_refused() -> None:
    assert "amp_fp16" in (refusal("ddp", setting=replace(SETTING, precision="amp_fp16"), hook="powersgd") or "")


def test_powersgd_without_shapes_is_refused_and_not_guessed() -> None:
    blind = facts(ParameterFact(name="w", numel=64, dtype="float32"))
    assert "shapes" in (refusal("ddp", blind, hook="powersgd") or "")


def test_static_graph_with_accumulation_is_refused() -> None:
    assert "static_graph" in (refusal("ddp", setting=replace(SETTING, accumulation=4), static_graph=True) or "")
    assert refusal("ddp", setting=replace(SETTING, accumulation=4)) is None


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("bucketed", {"bucket_cap_mb": 0}),
        ("bucketed", {"bucket_cap_mb": float("inf")}),
        ("bucketed", {"bucket_cap_mb": "25"}),
        ("ddp", {"bucket_cap_mb": -1.0}),
        ("ddp", {"hook": "int8"}),
        ("ddp", {"powersgd_rank": 0}),
        ("ddp", {"powersgd_start_iter": 1}),
        ("naive", {"flat": "yes"}),
        ("single", {"flat": True}),
    ],
)
def test_options_out_of_range_or_unknown_are_refused(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        REGISTRY.load(key).options(**options)


def memory(key: str, setting: Setting = SETTING, **options: Any) -> tuple[int, int, int, int]:
    spec = REGISTRY.load(key)
    m = spec.memory_plan(MODEL, setting, spec.options(**options))
    return m.parameter_bytes, m.gradient_bytes, m.optimizer_bytes, m.communication_bytes


def test_gradients_in_buckets_have_no_second_copy_and_ddps_own_buckets_are_one() -> None:
    n = MODEL.gradient_bytes
    for key, options in [("naive", {}), ("naive", {"flat": True}), ("interleaved", {}), ("bucketed", {})]:
        assert memory(key, **options) == (n, n, 0, 0)
    assert memory("ddp") == (n, n, 0, n)
    assert memory("ddp", gradient_as_bucket_view=True) == (n, n, 0, 0)
    assert memory("ddp", gradient_as_bucket_view=True, hook="fp16") == (n, n, 0, n // 2)


@pytest.mark.parametrize(
    ("optimizer", "momentum", "states"), [("sgd", 0.0, 0), ("sgd", 0.9, 1), ("adam", 0.9, 2), ("adamw", 0.0, 2)]
)
def test_optimizer_state_is_counted_in_copies_of_the_parameters(optimizer: str, momentum: float, states: int) -> None:
    setting = replace(SETTING, optimizer=optimizer, momentum=momentum)
    assert memory("naive", setting)[2] == states * MODEL.gradient_bytes


def test_an_unknown_optimizer_is_an_error_and_not_zero_bytes() -> None:
    with pytest.raises(UsageError, match="did you mean 'adam'"):
        memory("naive", replace(SETTING, optimizer="adan"))


def test_lossy_hooks_declare_it_and_the_others_are_exact() -> None:
    spec = REGISTRY.load("ddp")
    tolerance = {h: spec.tolerance(spec.options(hook=h)) for h in ("none", "fp16", "bf16", "powersgd")}
    assert tolerance["none"] == 0
    assert 0 < tolerance["fp16"] < tolerance["bf16"] < tolerance["powersgd"]


STACK = facts(
    parameter("table.weight", 10, 4),
    *(parameter(f"blocks.{i}.weight", 5, 4) for i in range(3)),
    parameter("head.weight", 4, 4),
)


def calls(ops: tuple[CommOp, ...]) -> list[str]:
    """``ag root`` for a gather of the root unit, ``rs 2`` for the reduction of block 2."""
    short = {"all_gather": "ag", "reduce_scatter": "rs", "all_reduce": "ar"}
    return [f"{short[op.op]} {op.members[0].split('.')[1] if 'blocks' in op.members[0] else 'root'}" for op in ops]


def test_fsdp2_gathers_in_order_and_again_one_unit_ahead_of_its_reductions() -> None:
    ops = plan("fsdp2", STACK)
    assert calls(ops) == ["ag root", "ag 0", "ag 1", "ag 2", "ag 2", "ag 1", "rs 2", "ag 0", "rs 1", "rs 0", "rs root"]
    assert [op.numel for op in ops[:2]] == [10 * 4 + 4 * 4, 2 * 3 * 4]  # a block's 5 rows are 3 for each rank
    whole = plan("fsdp2", STACK, reshard_after_forward=False)
    assert calls(whole) == ["ag root", "ag 0", "ag 1", "ag 2", "rs 2", "rs 1", "rs 0", "rs root"]


def test_the_first_unit_is_reduced_last_when_it_takes_the_batch() -> None:
    model = facts(*(parameter(f"layers.{i}.weight", 4, 4) for i in range(2)), parameter("norm.weight", 4))
    order = [op.members[0] for op in plan("fsdp2", model) if op.op == "reduce_scatter"]
    assert order == ["layers.1.weight", "norm.weight", "layers.0.weight"]


def test_hsdp_reduces_shards_over_the_replicas() -> None:
    mesh = {"dp_replicate": 2, "dp_shard": 2}
    four = replace(SETTING, world_size=4, mesh=mesh)
    ops = [op for op in plan("hsdp", STACK, four) if op.phase == "backward" and op.op != "all_gather"]
    assert [(op.op, op.group) for op in ops[:2]] == [("reduce_scatter", "dp_shard"), ("all_reduce", "dp_replicate")]
    assert ops[0].numel == 2 * ops[1].numel
    assert "{dp_replicate: 2, dp_shard: 4}" in (refusal("hsdp", STACK, replace(SETTING, world_size=8)) or "")


def test_zero1_deals_out_the_largest_first_and_broadcasts_each_part() -> None:
    model = facts(parameter("a", 5), parameter("b", 9), parameter("c", 6))
    sent = [op for op in plan("zero1", model) if op.op == "broadcast"]
    assert [op.members for op in sent] == [("b",), ("c",), ("a",)]
    together = [op for op in plan("zero1", model, parameters_as_bucket_view=True) if op.op == "broadcast"]
    assert [op.members for op in together] == [("b",), ("c", "a")]
    adam = replace(SETTING, optimizer="adam")
    spec = REGISTRY.load("zero1")
    assert spec.memory_plan(model, adam, spec.options()).optimizer_bytes == 2 * 4 * 11


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"cpu_offload": True}, "CPU ranks have them there already"),
        ({"reshard_after_forward": 3}, "must divide the 2 shards and be smaller: use true, false"),
        ({"param_dtype": "bf16"}, None),
    ],
)
def test_fsdp2_refuses_what_it_would_have_to_ignore(options: dict[str, Any], hint: str | None) -> None:
    found = refusal("fsdp2", STACK, **options)
    assert (found is None) == (hint is None)
    assert hint is None or hint in (found or "")
