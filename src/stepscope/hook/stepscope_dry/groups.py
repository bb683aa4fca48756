"""Process groups without other ranks, of any size: torch's fake backend, and answers where objects are exchanged."""

import functools
import sys

PLAIN_OF_MESHES = frozenset(
    "__repr__ __str__ __hash__ __eq__ __enter__ __exit__ __new__ __getattr__ size get_coordinate get_local_rank "
    "_sym_get_coordinate _is_current_rank_part_of_mesh _get_root_mesh _hash_key".split()
)
"""Methods of meshes that look into no tensor; some are called for each operator."""


def begin(session):
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    groups = Groups(session)
    session.parts["groups"] = groups
    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_allgather_base_", "Meta"):
        import torch.distributed._tools.fake_collectives  # torch before 2.9 gives their shapes there
    groups.make_groups(dist)
    groups.make_meshes()
    groups.answer_objects(dist)


class Groups:
    """The process groups of the script. backend: as it asked for it."""

    def __init__(self, session):
        self.session = session
        self.axes = {}
        """Ranks of a group -> the name of its mesh dimension."""
        self.numbers, self.rows = {}, []
        session.at_step.append(self.forget)

    def forget(self):
        self.numbers, self.rows = {}, []

    def real(self, function):
        """Return the function so that it works with data, unrecorded: what it does is no work of a step."""
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        session = self.session

        @functools.wraps(function)
        def with_data(*args, **kwargs):
            session.paused += 1
            try:
                with unset_fake_temporarily():
                    return function(*args, **kwargs)
            finally:
                session.paused -= 1

        return with_data

    def make_groups(self, dist):
        from torch.distributed import distributed_c10d as c10d
        from torch.testing._internal.distributed.fake_pg import FakeStore

        session, make = self.session, dist.init_process_group

        def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, *args, **kwargs):
            if world_size not in (-1, None, session.world):
                session.fail(
                    "world",
                    "the script makes a process group of {} ranks, and {} were asked for".format(
                        world_size, session.world
                    ),
                    fix="let it take its ranks from WORLD_SIZE, as torchrun sets it, or ask for --gpus {}".format(
                        world_size
                    ),
                )
            session.backend = str(backend or "nccl")
            self.real(make)("fake", store=FakeStore(), rank=session.rank, world_size=session.world)

        replace(dist, c10d, "init_process_group", init_process_group)
        new_group = dist.new_group

        def new_group_of(ranks=None, timeout=None, backend=None, *args, **kwargs):
            if ranks is not None and not all(0 <= rank < session.world for rank in ranks):
                session.fail(
                    "world", "the script makes a group with rank {} in a world of {}".format(max(ranks), session.world)
                )
            return self.real(new_group)(ranks, timeout, None, *args, **kwargs)

        replace(dist, c10d, "new_group", new_group_of)
        replace(dist, c10d, "get_backend", lambda group=None: (session.backend or "nccl").split(":")[-1])
        replace(dist, c10d, "monitored_barrier", lambda *args, **kwargs: None)

    def make_meshes(self):
        import torch.distributed.device_mesh as meshes

        groups, session, kind = self, self.session, meshes.DeviceMesh
        for name, function in list(vars(kind).items()):
            if name in PLAIN_OF_MESHES:
                continue
            if isinstance(function, staticmethod):
                setattr(kind, name, staticmethod(self.real(function.__func__)))
            elif callable(function) and not isinstance(function, type):
                setattr(kind, name, self.real(function))
        made = kind.__init__

        def init_mesh(own, *args, **kwargs):
            made(own, *args, **kwargs)
            groups.keep_axes(own)

        kind.__init__ = init_mesh
        init = meshes.init_device_mesh

        def init_device_mesh(device_type, mesh_shape, *args, **kwargs):
            size = 1
            for n in mesh_shape if not isinstance(mesh_shape, int) else (mesh_shape,):
                size *= n
            if size != session.world:
                session.fail(
                    "world",
                    "the script's device mesh has {} ranks ({}), and the world {}".format(
                        size, " x ".join(str(n) for n in mesh_shape), session.world
                    ),
                    fix="ask for {}, or let the script take the mesh from WORLD_SIZE".format(
                        "--gpus {}".format(size) if size else "more GPUs"
                    ),
                )
            return self.real(init)(device_type, mesh_shape, *args, **kwargs)

        for module in list(sys.modules.values()):  # some have it by its name already
            if getattr(module, "__dict__", {}).get("init_device_mesh") is init:
                module.init_device_mesh = init_device_mesh

    def keep_axes(self, mesh):
        """Remember which ranks a dimension of the mesh joins."""
        import torch.distributed as dist

        names = mesh.mesh_dim_names or ()
        for place, name in enumerate(names):
            try:
                ranks = tuple(dist.get_process_group_ranks(mesh.get_group(place)))
            except Exception:  # a mesh without groups, or one that this rank is not in
                continue
            self.axes[ranks] = name
            if len(ranks) > 1:
                self.session.mesh.setdefault(name, len(ranks))

    def number(self, group):
        """Return the number of a group in the record."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        if isinstance(group, str):
            group = c10d._resolve_process_group(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self.numbers:
            self.numbers[ranks] = len(self.rows)
            axis = self.axes.get(ranks) or ("world" if len(ranks) == self.session.world else None)
            self.rows.append({"ranks": ranks, "axis": axis})
        return self.numbers[ranks]

    def answer_objects(self, dist):
        """Exchange of Python objects: every rank says what this one says."""
        from torch.distributed import distributed_c10d as c10d

        def all_gather_object(object_list, obj, group=None):
            object_list[:] = [obj] * len(object_list)

        def gather_object(obj, object_gather_list=None, *args, **kwargs):
            if object_gather_list is not None:
                object_gather_list[:] = [obj] * len(object_gather_list)

        def scatter_object_list(output_list, input_list=None, *args, **kwargs):
            if input_list:
                output_list[0] = input_list[0]

        replace(dist, c10d, "all_gather_object", all_gather_object)
        replace(dist, c10d, "gather_object", gather_object)
        replace(dist, c10d, "scatter_object_list", scatter_object_list)
        replace(dist, c10d, "broadcast_object_list", lambda *args, **kwargs: None)


def replace(dist, c10d, name, function):
    """Put a function in the place of one of torch.distributed, under all its names: some modules have it by name already."""
    plain = getattr(c10d, name, None)
    for module in list(sys.modules.values()):
        if module in (dist, c10d) or (plain is not None and getattr(module, "__dict__", {}).get(name) is plain):
            setattr(module, name, function)
