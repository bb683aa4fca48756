"""A parameter that is cut into a piece for each rank: only the pieces that this rank looks at are made."""

from stepscope_dry.imports import when_imported

FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"
FSDP1 = "torch.distributed.fsdp._flat_param"


def begin(session):
    when_imported(FSDP2, lambda module: setattr(module, "_chunk_with_empty", Pieces))
    when_imported(
        FSDP1, lambda module: setattr(module.FlatParamHandle, "_get_unpadded_shard", staticmethod(unpadded_shard))
    )


class Pieces:
    """What ``torch.chunk`` returns and empty pieces behind it, made as they are asked for."""

    def __init__(self, tensor, count, dim=0):
        self.tensor, self.count, self.dim = tensor, count, dim
        self.size = -(-tensor.shape[dim] // count)

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not -self.count <= number < self.count:
            raise IndexError(number)
        first = number % self.count * self.size
        size = min(self.size, self.tensor.shape[self.dim] - first)
        return self.tensor.narrow(self.dim, first, size) if size > 0 else self.tensor.new_empty(0)


def unpadded_shard(tensor, rank, world_size):
    """Return a rank's piece of a flat parameter, and how many elements are added to it."""
    pieces = Pieces(tensor.flatten(), world_size)
    piece = pieces[rank]
    return piece, pieces.size - piece.numel()
