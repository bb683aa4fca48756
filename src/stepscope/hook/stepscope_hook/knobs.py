"""Settings of the job that `stepscope tune` tries: other arguments of DistributedDataParallel and of data loaders.

Off unless the command line asks. What was changed, and what could not be, is written to ``knobs-HOST-PID.json``.
"""

import inspect
import os

OF_DDP = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view")


def turn(control):
    """Wrap what torch will be asked for. control: files and options of this process."""
    wanted = control.options.get("knobs")
    if wanted:
        Knobs(control, wanted).begin()


class Knobs:
    """The knobs of one process. wanted: name -> value. turns: name -> what became of it."""

    def __init__(self, control, wanted):
        self.control, self.wanted = control, wanted
        self.turns = {}

    def begin(self):
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        if any(name in self.wanted for name in (*OF_DDP, "no_sync", "comm_hook")):
            self.wrap(DistributedDataParallel, self.arguments_of_ddp, self.made_ddp)
        if "num_workers" in self.wanted:
            self.wrap(DataLoader, self.arguments_of_loader, None)

    def wrap(self, owner, change, made):
        """Give ``owner.__init__`` other arguments: change(arguments as bound); made(object) is called afterwards."""
        original = owner.__init__
        signature = inspect.signature(original)

        def made_with(own, *args, **kwargs):
            try:
                bound = signature.bind(own, *args, **kwargs)
                change(bound.arguments)
                args, kwargs = bound.args[1:], bound.kwargs
            except Exception as error:  # the job goes on with its own arguments
                self.say(owner.__name__, False, "{}: {}".format(type(error).__name__, error))
            original(own, *args, **kwargs)
            if made is not None:
                try:
                    made(own)
                except Exception as error:  # as above
                    self.say(owner.__name__, False, "{}: {}".format(type(error).__name__, error))

        made_with.__wrapped__ = original
        owner.__init__ = made_with

    def arguments_of_ddp(self, arguments):
        for name in OF_DDP:
            if name in self.wanted:
                before = arguments.get(name)
                arguments[name] = self.wanted[name]
                self.say(name, True, "{}, was {}".format(self.wanted[name], "default" if before is None else before))

    def arguments_of_loader(self, arguments):
        wanted, before = self.wanted["num_workers"], arguments.get("num_workers", 0)
        if before >= wanted:
            if not self.turns.get("num_workers", {}).get("applied"):
                self.say("num_workers", False, "the job has {} already".format(before))
            return
        arguments["num_workers"] = wanted
        self.say("num_workers", True, "{}, was {}".format(wanted, before))

    def made_ddp(self, module):
        if "comm_hook" in self.wanted:
            module.register_comm_hook(None, bf16_hook)
            self.say("comm_hook", True, "bf16")
        if "no_sync" in self.wanted:
            Accumulation(self, module, self.wanted["no_sync"]).begin()

    def say(self, name, applied, words):
        turn = {"applied": applied, "words": words}
        if self.turns.get(name) != turn:
            self.turns[name] = turn
            kind, place = "profile_knobs/1", "knobs-{}-{}.json".format(self.control.host, os.getpid())
            self.control.write(kind, place, {"pid": os.getpid(), "found": self.turns})


def bf16_hook(state, bucket):
    """Send the bucket in bfloat16: divide first, so that the sum is the average."""
    import torch

    narrow = bucket.buffer().to(torch.bfloat16).div_(torch.distributed.get_world_size())
    done = torch.distributed.all_reduce(narrow, async_op=True).get_future()
    return done.then(lambda future: bucket.buffer().copy_(future.value()[0]))


class Accumulation:
    """DDP that reduces in the last of ``micro_steps`` backward passes of a step alone.

    Where a step has fewer passes, as the last of an epoch, what was not reduced is reduced before the optimizer's step.
    """

    def __init__(self, knobs, module, micro_steps):
        self.knobs, self.module, self.micro_steps = knobs, module, micro_steps
        self.passes = 0
        self.left = False
        """Whether gradients are there that no other rank has seen."""
        self.on = True

    def begin(self):
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self.module.register_forward_pre_hook(self.forward_begins)
        register_optimizer_step_pre_hook(self.optimizer_begins)

    def forward_begins(self, module, inputs):
        import torch

        if not (self.on and module.training and torch.is_grad_enabled()):
            return
        if self.passes == 0 and not module.require_backward_grad_sync:
            self.on = False
            self.knobs.say("no_sync", False, "the job does it itself")
            return
        self.passes += 1
        last = self.passes % self.micro_steps == 0
        module.require_backward_grad_sync = last
        self.left = not last
        if self.passes == self.micro_steps:
            self.knobs.say("no_sync", True, "1 of {} micro-steps reduces".format(self.micro_steps))

    def optimizer_begins(self, optimizer, args, kwargs):
        if not self.on:
            return
        if self.left:
            import torch

            ranks = torch.distributed.get_world_size(self.module.process_group)
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad.div_(ranks), group=self.module.process_group)
        self.passes, self.left = 0, False
        self.module.require_backward_grad_sync = True
