"""What a cell's workload, dataset and strategy together declare: parameters, FLOP, and what travels each step.

The keystone: the planner prices it, the rank half checks it against what was seen, the table explains it.
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.datasets import REGISTRY as DATASETS
from stepscope.datasets import Dataset
from stepscope.records.cell import CellSpec
from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, InputNeeds, MemoryPlan, ModelFacts, Setting
from stepscope.records.precision import parameter_dtype
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.strategies import Strategy
from stepscope.workloads import REGISTRY as WORKLOADS


@record
class Specs:
    """A cell's plugins with their validated options, and what they say.

    needs: the model's input, completed by the dataset. comm_plan: collectives of one optimizer step.
    """

    model: OptionsModel
    dataset: Dataset
    dataset_options: OptionsModel
    strategy: Strategy
    strategy_options: OptionsModel
    needs: InputNeeds
    facts: ModelFacts
    setting: Setting
    comm_plan: tuple[CommOp, ...]

    def plan_of_rank(self, rank: int) -> tuple[CommOp, ...]:
        """Collectives of one rank's optimizer step."""
        plan = self.strategy.plan_of_rank
        return self.comm_plan if plan is None else plan(self.facts, self.setting, self.strategy_options, rank)

    @property
    def memory_plan(self) -> MemoryPlan:
        return memory_plan(self.strategy, self.facts, self.setting, self.strategy_options)

    @property
    def replicated(self) -> bool:
        """Whether all that ranks exchange is gradients between whole replicas: each can then also step alone."""
        return not self.strategy.sharded and all(
            op.op == "all_reduce" and op.phase in ("backward", "after_backward") for op in self.comm_plan
        )

    @property
    def comm_bytes_per_step(self) -> int:
        """Payload that one rank passes to collectives in one optimizer step, bytes."""
        return sum(op.size_bytes for op in self.comm_plan)


def memory_plan(strategy: Strategy, facts: ModelFacts, setting: Setting, options: OptionsModel) -> MemoryPlan:
    """Plan the bytes of the rank that holds most, activations where the workload has a formula; strategies that divide the
    model say what a rank keeps."""
    plan = strategy.memory_plan(facts, setting, options)
    kept = facts.activations.get(setting.activation_checkpointing)
    divided = setting.size("tp") * setting.size("pp") > 1
    if plan.activations is not None or kept is None or divided or setting.precision.startswith("amp_"):
        return plan
    return replace(plan, activations={kind: n * setting.micro_batch for kind, n in kept.items()})


def setting_of(cell: CellSpec, *, warmup_steps: int | None = None) -> Setting:
    """The part of a cell that a strategy's spec depends on."""
    return Setting(
        device=cell.device,
        backend=cell.backend,
        world_size=cell.world_size,
        mesh=cell.mesh,
        precision=cell.precision,
        optimizer=cell.optimizer,
        momentum=cell.momentum,
        accumulation=cell.accumulation,
        micro_batch=cell.micro_batch,
        warmup_steps=warmup_steps,
        activation_checkpointing=cell.activation_checkpointing,
        clip=cell.clip is not None,
    )


def specs_of(cell: CellSpec, *, warmup_steps: int | None = None) -> Specs:
    """The spec of a resolved cell; one that its strategy refuses plans nothing.

    Raises UsageError for unknown names, pydantic's ValidationError for options.
    """
    workload, dataset = WORKLOADS.load(cell.workload), DATASETS.load(cell.dataset)
    strategy = STRATEGIES.load(cell.strategy)
    model = workload.options.model_validate(dict(cell.model))
    dataset_options = dataset.options.model_validate(dict(cell.dataset_options))
    strategy_options = strategy.options.model_validate(dict(cell.strategy_options))
    needs = dataset.resolve(dataset_options, workload.needs(model))
    facts = cell.facts or workload.facts(model, needs, parameter_dtype(cell.precision))
    setting = setting_of(cell, warmup_steps=warmup_steps)
    refused = bool(cell.mesh.keys() - strategy.dimensions) or strategy.requires(facts, setting, strategy_options)
    return Specs(
        model=model,
        dataset=dataset,
        dataset_options=dataset_options,
        strategy=strategy,
        strategy_options=strategy_options,
        needs=needs,
        facts=facts,
        setting=setting,
        comm_plan=() if refused else strategy.comm_plan(facts, setting, strategy_options),
    )
