"""Which modules of the job are the model: the outermost ones that hold the optimizer's parameters."""


def find_roots(modules, optimizer):
    """Modules to look at: each outermost one, and the only child below it that holds all of its trained parameters.

    What is compiled is a root as a whole: nothing below it is looked at.
    """
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    found = []
    for module in modules:
        if id(module) in inner:
            continue
        held = held_by(module, trained)
        if not held:
            continue
        while module is not None and not compiled_in_place(module):
            found.append(module)
            if type(module).__name__ == "OptimizedModule":
                break
            below = [child for child in module._modules.values() if child is not None]
            module = next((child for child in below if held_by(child, trained) == held), None)
    return found


def held_by(module, trained):
    return {id(each) for each in module.parameters()} & trained


def compiled_in_place(module):
    return getattr(module, "_compiled_call_impl", None) is not None
