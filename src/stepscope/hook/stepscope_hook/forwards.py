"""A time window for jobs without an optimizer: every outermost forward pass of a module ends a step."""


def watch_forwards(steps):
    """Count forward passes until the first window is over."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    depth = [0]
    handles = []

    def before(module, args):  # torch's signature
        depth[0] += 1
        if depth[0] > 1:
            return
        if steps.optimizer is None:
            steps.optimizer = -1
            steps.register()
        if steps.optimizer != 0:
            steps.boundary(None)
        if steps.optimizer == 0 or (steps.window is None and steps.number > 1):
            for handle in handles:
                handle.remove()

    def after(module, args, output):  # torch's signature
        depth[0] = max(depth[0] - 1, 0)

    handles.append(register_module_forward_pre_hook(before))
    handles.append(register_module_forward_hook(after))
