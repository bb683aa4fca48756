"""What SyncBatchNorm computes: torch has these operators for GPUs alone, and no rule for their shapes."""


def begin(session):
    import torch
    from torch._subclasses.fake_impls import op_implementations_dict as answers

    aten = torch.ops.aten

    def of_channels(source, count):
        return tuple(source.new_empty((source.shape[1],), dtype=torch.float32) for _ in range(count))

    def backward_reduce(mode, func, grad, source, mean, invstd, weight, input_g, weight_g, bias_g):
        return tuple(
            result if wanted else None
            for result, wanted in zip(of_channels(source, 4), (input_g, input_g, weight_g, bias_g))
        )

    answers[aten.batch_norm_stats.default] = lambda mode, func, source, eps: of_channels(source, 2)
    answers[aten.batch_norm_gather_stats_with_counts.default] = lambda mode, func, source, *rest: of_channels(source, 2)
    answers[aten.batch_norm_backward_reduce.default] = backward_reduce
    for operator in (aten.batch_norm_elemt, aten.batch_norm_backward_elemt):
        answers[operator.default] = lambda mode, func, source, *rest: torch.empty_like(source)
