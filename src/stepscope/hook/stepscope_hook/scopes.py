"""The modules of the model as ranges of the trace: ``module: layers.3.attention``, forward passes."""


class Scopes:
    """Registered with torch for all modules while a window is open."""

    def __init__(self):
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

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
        self.open.append((id(module), span))

    def after(self, module, args, output):  # torch's signature
        while self.open:
            key, span = self.open.pop()
            span.__exit__(None, None, None)
            if key == id(module):
                return

    def close(self):
        for handle in self.handles:
            handle.remove()
        while self.open:
            self.open.pop()[1].__exit__(None, None, None)
