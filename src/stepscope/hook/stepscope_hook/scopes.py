"""The modules of the model as ranges of the trace: ``module: layers.3.attention``, forward passes."""


class Scopes:
    """Registered with torch for all modules while a window is open. memory: name each allocation's module, too."""

    def __init__(self, memory=False):
        import torch
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self.tell = getattr(torch.cuda.memory, "_set_memory_metadata", None) if memory else None  # torch 2.10
        self.names = {}
        self.open = []
        self.handles = [register_module_forward_pre_hook(self.before)]
        try:
            self.handles.append(register_module_forward_hook(self.after, always_call=True))
        except TypeError:  # torch before 2.1
            self.handles.append(register_module_forward_hook(self.after))

    def before(self, module, args):  # torch's signature
        import torch

        if not self.open:
            self.names = {id(each): name for name, each in module.named_modules()}
        name = self.names.get(id(module)) or type(module).__name__
        span = torch.profiler.record_function("module: " + name)
        span.__enter__()
        self.open.append((id(module), span, name))
        if self.tell is not None:
            self.tell(name)

    def after(self, module, args, output):  # torch's signature
        while self.open:
            if self.leave() == id(module):
                return

    def leave(self):
        """id() of the innermost module, which ends."""
        key, span, _ = self.open.pop()
        span.__exit__(None, None, None)
        if self.tell is not None:
            self.tell(self.open[-1][2] if self.open else "")
        return key

    def close(self):
        for handle in self.handles:
            handle.remove()
        while self.open:
            self.leave()
