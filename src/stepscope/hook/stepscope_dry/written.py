"""The record of a step as it is written: records/dry_run.py's DryRank."""


def rank_document(session):
    """Return the document of the step that has ended."""
    recorder, memory = session.parts["operators"], session.parts.get("memory")
    parameters, trained, dtypes = counted_parameters(session)
    groups = session.parts.get("groups")
    return {
        "rank": session.rank, "world_size": session.world, "steps": session.step, "micro_steps": session.micro_steps,
        "samples": session.samples, "tokens": session.tokens, "parameters": parameters, "trained": trained, "dtypes": dtypes,
        "device": session.device, "backend": session.backend,
        "optimizer": type(session.optimizers[-1]).__name__ if session.optimizers else None,
        "operators": recorder.rows, "order": recorder.order, "calls": recorder.calls,
        "groups": groups.rows if groups else [], "memory": memory.document(),
        "mesh": session.mesh, "wrappers": session.wrappers, "settings": settings_of(session),
        "compiled": session.parts["compiled"].paths(),
        "pipeline": session.pipeline, "notes": list(session.notes.values()),
    }  # fmt: skip


def settings_of(session):
    """Return what was seen of wrappers, and whether FP32 products may take a shorter type."""
    import torch

    precision = torch.get_float32_matmul_precision()
    return dict(session.settings, **({} if precision == "highest" else {"float32_matmul_precision": precision}))


def counted_parameters(session):
    """Return (elements of the model, of what is trained, elements by dtype), those of all ranks together."""
    trained = {id(p): p for o in session.optimizers for group in o.param_groups for p in group["params"]}
    everything = dict(trained)
    for module in session.parts["memory"].roots():
        for parameter in module.parameters():
            everything[id(parameter)] = parameter
    dtypes = {}
    for parameter in everything.values():
        name = str(parameter.dtype)[6:]
        dtypes[name] = dtypes.get(name, 0) + parameter.numel()
    return sum(dtypes.values()), sum(p.numel() for p in trained.values()), dtypes
