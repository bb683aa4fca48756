"""DistributedDataParallel without its reducer, which is C++ and reads the storage of gradients.

The class stays torch's own: what it calls of C++ (``Reducer``, ``Logger``, the check of parameters, communication hooks)
is answered here by the same rules, so that the buckets, and the order and the sizes of what is sent, are those of a real
run. Buckets are rebuilt as the first backward pass ends, not as the second forward pass begins: the two broadcasts that
agree on them belong to no step that is like the others.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

DONE_NOTHING = (
    "set_logger",
    "get_backward_stats",
    "_set_ddp_runtime_logging_sample_rate",
    "_set_forward_pass_work_handle",
    "_set_sparse_metadata",
    "_check_reducer_finalized",
    "_push_all_rebuilt_params",
)


def begin(session):
    """Put the stand-ins in torch's place."""
    if not dist.is_available():
        return
    from torch.nn.parallel import distributed

    _wait_for_broadcasts(session)
    dist.Reducer, dist.Logger = _Reducer, _Logger
    dist._verify_params_across_processes = _verify_parameters
    dist._register_comm_hook = _register_hook
    dist._register_builtin_comm_hook = _register_builtin_hook
    _Reducer.session = session
    wrapper = distributed.DistributedDataParallel
    wrapper._passing_sync_batchnorm_handle = lambda self, module: None
    construct, check = wrapper.__init__, wrapper._check_comm_hook
    changes = session.options.get("changes", {})
    changed = changes.get("bucket")

    def wrap(self, module, device_ids=None, output_device=None, *rest, **named):
        if changed:
            named["bucket_cap_mb"] = float(changed) / (1 << 20)
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = output_device = None  # no device stands for one: torch accepts none of the host
        construct(self, module, device_ids, output_device, *rest, **named)
        options = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
        settings = {name: True for name in options if getattr(self, name, False)}
        session.wrapper("ddp", bucket_bytes=self.bucket_bytes_cap, **settings)

    def check_hook(self, hook):
        if not hook.__name__.startswith("bf16_compress"):  # its check is for a GPU, which is there
            check(self, hook)

    wrapper.__init__, wrapper._check_comm_hook = wrap, check_hook
    if "sync" in changes:
        _reduce_in_last_pass(session, wrapper)


def _reduce_in_last_pass(session, wrapper):
    """Have only the last of a step's backward passes reduce gradients, as within ``no_sync``; the step before tells how many
    there are."""
    forward = wrapper.forward

    def called(self, *inputs, **named):
        self.require_backward_grad_sync = session.micro_steps + 1 >= session.passes
        return forward(self, *inputs, **named)

    wrapper.forward = called


def _wait_for_broadcasts(session):
    """Buffers are broadcast before they are read."""
    recorder, streams, broadcast = session.parts["operators"], session.parts["streams"], dist._broadcast_coalesced

    def broadcast_coalesced(*args, **kwargs):
        before = len(recorder.calls)
        broadcast(*args, **kwargs)
        streams.wait(streams.current(), (0, frozenset(range(before, len(recorder.calls)))))

    dist._broadcast_coalesced = broadcast_coalesced


def _verify_parameters(group, parameters, logger=None):
    """Send what compares the ranks' parameters: their number, then the sizes and strides of all."""
    count = torch.zeros(1, dtype=torch.long)
    dist.all_gather([torch.empty_like(count) for _ in range(group.size())], count, group=group)
    shapes = torch.empty(sum(2 * parameter.dim() for parameter in parameters), dtype=torch.long)
    dist.broadcast(shapes, group_src=0, group=group)


def _register_hook(reducer, state, hook):
    if "hook_with_zero_step" in getattr(hook, "__qualname__", ""):
        reducer.session.fail(
            "unsupported",
            "ZeroRedundancyOptimizer steps within the backward pass",
            fix="leave overlap_with_ddp=True out",
        )
    reducer.hook, reducer.state = lambda bucket: hook(state, bucket), state


def _register_builtin_hook(reducer, kind):
    hook = {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}[kind.name]
    reducer.hook = lambda bucket: hook(reducer.group, bucket)


class _Logger:
    """DDP's own log: nothing is kept."""

    def __init__(self, reducer):
        self.reducer = reducer

    def _get_ddp_logging_data(self):
        return self

    strs_map, ints_map = {}, {}

    def __getattr__(self, name):
        return lambda *values: None


class _Bucket:
    """Gradients that are reduced together; communication hooks are given it as their GradBucket."""

    def __init__(self, reducer, number, indices):
        self.reducer, self.number, self.indices = reducer, number, indices
        self.variables = [reducer.parameters[index] for index in indices]
        first = self.variables[0]
        self.flat = first.new_empty(
            sum(variable.numel() for variable in self.variables), dtype=reducer.dtype, requires_grad=False
        )
        reducer.session.parts["memory"].name(self.flat, "buffers")
        self.views = self.views_of(self.flat)
        self.pending, self.future = 0, None
        for variable, view in zip(self.variables, self.views):
            if reducer.as_view and variable.grad is not None:
                view.copy_(variable.grad)
                variable.grad = view

    def views_of(self, flat):
        views, offset = [], 0
        for variable in self.variables:
            views.append(flat.as_strided(variable.shape, variable.stride(), offset))
            offset += variable.numel()
        return views

    def index(self):
        return self.number

    def buffer(self):
        return self.flat

    def set_buffer(self, tensor):
        self.flat = tensor

    def gradients(self):
        return self.views

    def parameters(self):
        return self.variables

    def is_last(self):
        return self.number == len(self.reducer.buckets) - 1


class _Reducer:
    """Torch's Reducer by its rules: a bucket is sent when its gradients and those of the buckets before are ready."""

    session = None

    def __init__(
        self,
        parameters,
        buckets,
        limits,
        group,
        sparse=(),
        cap=25 << 20,
        find_unused=False,
        as_view=False,
        names=None,
        first_cap=1 << 20,
        skip_unused=False,
        python_reducer=False,
        caps=(),
        batched=False,
    ):
        if any(sparse):
            self.session.fail("unsupported", "sparse gradients in DistributedDataParallel")
        self.parameters, self.group, self.find_unused, self.as_view = parameters, group, find_unused, as_view
        self.caps, self.skip_unused, self.batched = list(caps) or [first_cap, cap], skip_unused, batched
        self.hook = self.state = self.dtype = None
        self.static = self.rebuilt = self.expects = self.in_backward = False
        self.iterations, self.ready_order, self.unused = 0, {}, []
        self.futures = []
        self.used = torch.zeros(len(parameters), dtype=torch.int32)
        self.used_here, self.triggers = set(), [0] * len(parameters)
        self.nodes = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in parameters]
        self.handles = [
            node.register_hook(lambda *values, index=index: self._autograd_hook(index))
            for index, node in enumerate(self.nodes)
        ]
        self._make_buckets(buckets)

    def _make_buckets(self, buckets):
        with torch.no_grad():
            self.buckets = [_Bucket(self, number, indices) for number, indices in enumerate(buckets)]
        self.places = {index: (bucket, place) for bucket in self.buckets for place, index in enumerate(bucket.indices)}

    @property
    def _finds_unused(self):
        return self.find_unused and not self.static

    def prepare_for_forward(self):
        self.iterations += 1

    def prepare_for_backward(self, outputs):
        self.expects, self.marked_unused, self.next = True, False, 0
        for bucket in self.buckets:
            bucket.pending = len(bucket.variables)
        self.left = list(self.triggers)
        if self._finds_unused:
            seen, queue = set(), [output.grad_fn for output in outputs if output.grad_fn is not None]
            while queue:
                for node, _ in queue.pop().next_functions:
                    if node is not None and node not in seen:
                        seen.add(node)
                        queue.append(node)
            self.unused = [index for index, node in enumerate(self.nodes) if node not in seen]

    def _autograd_hook(self, index):
        first_of_static = self.static and self.iterations == 1
        if self._finds_unused or first_of_static:
            self.used_here.add(index)
        if self._may_rebuild:
            self.ready_order.pop(index, None)  # of a static graph the last call of several counts
            self.ready_order[index] = True
        if first_of_static:
            self.triggers[index] += 1
            return
        if not self.expects:
            return
        if not self.marked_unused:
            self.marked_unused = True
            for unused in self.unused:
                self._ready(unused)
        if self.static:
            self.left[index] -= 1
            if self.left[index]:
                return
        self._ready(index)

    @property
    def _may_rebuild(self):
        return (self.static or not self.find_unused) and not self.rebuilt

    def _ready(self, index):
        bucket, place = self.places[index]
        if not self.batched:
            self._fill(bucket, place)
        bucket.pending -= 1
        if not bucket.pending and self.batched:
            self._fill_at_once(bucket)
        while self.next < len(self.buckets) and not self.buckets[self.next].pending:
            self._reduce(self.buckets[self.next])
            self.next += 1
            if self.next == len(self.buckets):
                if self._finds_unused:
                    self._reduce_used()
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    @torch.no_grad()
    def _fill(self, bucket, place):
        """Put a gradient into its bucket, divided by the ranks where no hook does that."""
        variable, view = bucket.variables[place], bucket.views[place]
        grad, scale = variable.grad, 1.0 / self.group.size()
        if grad is None:
            view.zero_()
        elif grad.untyped_storage()._cdata == view.untyped_storage()._cdata:
            if self.hook is None:
                view.mul_(scale)
        else:
            if self.hook is None:
                torch.mul(grad, scale, out=view)
            else:
                view.copy_(grad)
            if self.as_view:
                variable.grad = view

    @torch.no_grad()
    def _fill_at_once(self, bucket):
        pairs = [(view, variable.grad) for view, variable in zip(bucket.views, bucket.variables)]
        pairs = [(view, grad) for view, grad in pairs if grad is not None]
        torch._foreach_copy_([view for view, _ in pairs], [grad for _, grad in pairs])
        if self.hook is None:
            bucket.flat.div_(self.group.size())
        if self.as_view:
            for view, variable in zip(bucket.views, bucket.variables):
                variable.grad = view

    def _reduce(self, bucket):
        if self.skip_unused and set(bucket.indices) <= set(self.unused):
            bucket.future = None
            return
        bucket.future = self._run_comm_hook(bucket)

    def _run_comm_hook(self, bucket):
        with torch.no_grad():
            return (self.hook or self._run_allreduce_hook)(bucket)

    def _run_allreduce_hook(self, bucket):
        return dist.all_reduce(bucket.flat, group=self.group, async_op=True).get_future()

    def _reduce_used(self):
        self.used_work = dist.all_reduce(self.used, group=self.group, async_op=True)

    def _delay_all_reduce(self):
        """Reduce everything after the first backward pass of a static graph."""
        self._reduce_used()
        self.unused = [index for index, count in enumerate(self.triggers) if not count]
        for bucket in self.buckets:
            for place in range(len(bucket.indices)):
                self._fill(bucket, place)
        for bucket in self.buckets:
            bucket.future = self._run_comm_hook(bucket)
        self._finish()

    @torch.no_grad()
    def _finish(self):
        self.expects = False
        for bucket in self.buckets:
            if bucket.future is None:
                continue
            result = bucket.future.wait()
            result = result[0] if isinstance(result, (list, tuple)) else result
            views = bucket.views if result is bucket.flat else bucket.views_of(result)
            for index, variable, view_in, view in zip(bucket.indices, bucket.variables, bucket.views, views):
                self._give_back(variable, view_in, view, index)
            bucket.future = None
        for future in self.futures:
            future.wait()
        self.futures = []
        if self.static:
            self.ready_order.update(dict.fromkeys(self.unused))
        self.used_here = self.used_here if self.static else set()
        if self._may_rebuild and self.ready_order:
            self._agree_on_buckets()
        starts = getattr(self.state, "start_powerSGD_iter", 0)
        if starts and self.state.iter < starts:
            self.state.iter = starts
            self.session.note("skipped", "PowerSGD's first {} steps, which reduce whole gradients".format(starts))

    def _give_back(self, variable, view_in, view, index):
        """Make the reduced gradient the parameter's; one that no rank used keeps its own."""
        unused = (self.static or self.find_unused) and index not in self.used_here
        if self.as_view and view is not view_in:
            view_in.copy_(view)
        if self.in_backward or unused:
            return
        if self.as_view:
            variable.grad = view_in
        elif variable.grad is None:
            variable.grad = view.clone()
        else:
            variable.grad.copy_(view)

    def _agree_on_buckets(self):
        """Make the buckets anew in the order in which gradients were ready."""
        last_is_small = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
        order = list(self.ready_order)[:: -1 if last_is_small else 1]
        buckets, _ = dist._compute_bucket_assignment_by_size(
            [self.parameters[index] for index in order], self.caps, [], order
        )
        buckets = buckets[::-1] if last_is_small else buckets
        for count in (len(self.parameters) + 1, len(buckets)):
            dist.broadcast(torch.empty(count, dtype=torch.int32), group_src=0, group=self.group)
        self.rebuilt = True
        self._make_buckets(buckets)

    def _rebuild_buckets(self):
        return False

    def _set_static_graph(self):
        self.static = True

    def _install_post_backward_futures(self, futures):
        self.futures += futures

    def _get_zeros_like_grad_buckets(self):
        return self.buckets

    def _get_local_used_map(self):
        return self.used

    def _set_optimizer_in_backward(self):
        self.in_backward = True

    def _set_mixed_precision_param_dtype(self, dtype):
        self.dtype = dtype
        self._make_buckets([bucket.indices for bucket in self.buckets])

    def _remove_autograd_hooks(self):
        for handle in self.handles:
            handle.remove()

    def _update_process_group(self, group):
        self.group = group

    def _reset_state(self):
        self.expects, self.ready_order, self.iterations = False, {}, 0


for _name in DONE_NOTHING:
    setattr(_Reducer, _name, lambda self, *values: None)
