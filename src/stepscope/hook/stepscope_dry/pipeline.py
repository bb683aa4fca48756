"""Pipelines of torch.distributed.pipelining: this process runs the stages of one rank, others those of the other ranks.

Stages tell each other the shapes of what they send: here through files of the run's folder, as the ranks are run one after
another. What a rank that has not run would say is answered: an output's gradient looks like the output; an input from a
later rank looks like what this rank's stage before gave. Recorded is what a step computes, action by action.
"""

import os
import pickle
import shutil

from stepscope_dry.imports import when_imported
from stepscope_dry.session import real_open

_STAGE_METHODS = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}


def begin(session):
    """Patch the schedules and stages, and the messages of objects."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    exchange = _Exchange(session)
    for module in (dist, dist.distributed_c10d):
        module.send_object_list, module.recv_object_list = exchange.send, exchange.receive
    pipeline = session.parts["pipeline"] = _Pipeline(session)

    def patch_stages(stages):
        for name, kind in _STAGE_METHODS.items():
            setattr(stages._PipelineStageBase, name, pipeline.recorded(getattr(stages._PipelineStageBase, name), kind))
        for name in ("_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference"):
            if hasattr(stages.PipelineStage, name):
                method = getattr(stages.PipelineStage, name)
                setattr(stages.PipelineStage, name, _asking(exchange, method, "backward" in name))

    def patch_schedules(schedules):
        for owner in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
            owner.step = pipeline.recorded_step(owner.step)
        if hasattr(schedules._PipelineSchedule, "_warmup_p2p"):
            schedules._PipelineSchedule._warmup_p2p = _agree

    when_imported("torch.distributed.pipelining.stage", patch_stages)
    when_imported("torch.distributed.pipelining.schedules", patch_schedules)


class _Pipeline:
    """The actions of this rank in the order of its schedule, each until the next one begins."""

    def __init__(self, session):
        self.session = session
        self.actions = []
        session.at_step.append(self.actions.clear)

    def position(self):
        return self.session.parts["operators"].position

    def action(self, facts=None):
        """End the action that runs, and begin the next one."""
        if self.actions and "until" not in self.actions[-1]:
            self.actions[-1]["until"] = self.position()
        if facts:
            self.actions.append(dict(facts, at=self.position()))

    def recorded_step(self, step):
        """Note the schedule, and where its last action ends."""

        def recorded(schedule, *args, **kwargs):
            session, own = self.session, getattr(schedule, "_stages", None) or [schedule._stage]
            try:
                return step(schedule, *args, **kwargs)
            finally:
                self.action()
                session.wrapper("pipeline")
                session.pipeline = {
                    "schedule": type(schedule).__name__,
                    "micro_batches": schedule._n_microbatches,
                    "ranks": [own[0]._resolve_peer_global_rank(index) for index in range(own[0].num_stages)],
                    "actions": self.actions,
                }
                session.micro_steps = schedule._n_microbatches

        return recorded

    def recorded(self, method, kind):
        """Note that an action of this kind begins."""

        def recorded(stage, micro_batch, *args, **kwargs):
            whole = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
            if stage.has_backward:
                name = kind if whole or kind != "B" else "I"
                self.action({"kind": name, "stage": stage.stage_index, "micro_batch": micro_batch})
            return method(stage, micro_batch, *args, **kwargs)

        return recorded


def _asking(exchange, method, backward):
    """Remember which stage asks for shapes, and of what."""

    def asking(stage, *args, **kwargs):
        exchange.asks = (stage, backward)
        try:
            return method(stage, *args, **kwargs)
        finally:
            exchange.asks = None

    return asking


def _agree(schedule, stages, has_backward, p2p_done):
    """Take this rank's own wish for the wish of all, whether stages tell each other shapes."""
    from torch.distributed.pipelining.stage import InferenceMode, PipelineStage

    own = [stage for stage in stages if isinstance(stage, PipelineStage)]
    dynamic = any(InferenceMode.needs_dynamic(stage._user_meta, has_backward) for stage in own)
    for stage in own:
        stage._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC


class _Exchange:
    """Objects from rank to rank, as files of a folder that the ranks of a world share."""

    def __init__(self, session):
        self.session = session
        self.asks = None
        self.forward = None
        self.counts = {}
        self.folder = os.path.join(
            session.options["output"], ".stepscope", "world-{:06d}-objects".format(session.world)
        )
        if session.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False):
        path = self._path(self.session.rank, _global(group, dst, group_dst))
        content = _dumped(object_list)
        if self.asks is not None and not self.asks[1]:
            self.forward = content
        if _read(path + ".guess") not in (None, content):
            self.session.note(
                "pipeline", "stage {} gives another shape than was taken for it".format(self.asks[0].stage_index)
            )
        self._write(path, content)

    def receive(self, object_list, src=None, group=None, device=None, group_src=None, use_batch=False):
        source = _global(group, src, group_src)
        path = self._path(source, self.session.rank)
        content = _read(path)
        if content is None:
            content = self._answer(source)
            self._write(path + ".guess", content)
        object_list[:] = pickle.loads(content)
        return source

    def _write(self, path, content):
        os.makedirs(self.folder, exist_ok=True)
        with real_open(path, "wb") as file:
            file.write(content)

    def _path(self, source, target):
        number = self.counts[source, target] = self.counts.get((source, target), -1) + 1
        return os.path.join(self.folder, "{}-{}-{}".format(source, target, number))

    def _answer(self, source):
        """Return what a rank that has not run would send."""
        stage, backward = self.asks or (None, False)
        if backward:
            import torch.distributed.pipelining.stage as stages

            given = stage._stage_meta.outputs
            grads = stages._derive_grad_metas(tuple(meta for meta in given if meta.requires_grad))
            metas = iter(grads)
            return _dumped(
                [stages._StageBackwardMeta(tuple(next(metas) if meta.requires_grad else None for meta in given))]
            )
        if stage is None or self.forward is None:
            self.session.fail(
                "needs-data",
                "rank {} waits for an object of rank {}, which has not run".format(self.session.rank, source),
                self.session.place(),
            )
        return self.forward


class _Shapes(pickle.Pickler):
    """Pickles tensors by their shapes alone."""

    def reducer_override(self, value):
        import torch

        if not isinstance(value, torch.Tensor):
            return NotImplemented
        return _empty, (tuple(value.shape), value.stride(), value.dtype, value.device.type, value.requires_grad)


def _empty(shape, stride, dtype, device, requires_grad):
    import torch

    return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=requires_grad)


def _dumped(value):
    import io

    file = io.BytesIO()
    _Shapes(file).dump(value)
    return file.getvalue()


def _read(path):
    try:
        with real_open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _global(group, rank, group_rank):
    import torch.distributed as dist

    if group_rank is not None:
        return dist.get_global_rank(group or dist.group.WORLD, group_rank)
    return rank
