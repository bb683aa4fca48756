_HOOKS = []


def register_optimizer_step_post_hook(hook):
    _HOOKS.append(hook)


class SGD:
    """An optimizer without parameters."""

    param_groups = ()

    def step(self):
        for hook in _HOOKS:
            hook(self, (), {})
