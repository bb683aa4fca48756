from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

from stepscope.rank.probe import probe
from stepscope.records.codec import to_builtins


def fake_torch(*, count: int = 0, cuda: str | None = None, hip: str | None = None, **changes: Any) -> Any:
    """A torch with ``count`` devices; ``changes`` replace functions of ``torch.cuda``."""

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    class Tensor:
        def __matmul__(self, _: Tensor) -> Tensor:
            return self

        def __eq__(self, _: object) -> Any:
            return SimpleNamespace(all=lambda: True)

        __hash__ = None  # type: ignore[assignment]

        def item(self) -> float:
            return 0.0

    cuda_functions: dict[str, Any] = {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "init": lambda: None,
        "device": Device,
        "is_bf16_supported": lambda **_: True,
        "can_device_access_peer": lambda a, b: abs(a - b) == 1,
        "get_device_properties": lambda i: SimpleNamespace(name=f"GPU {i}", total_memory=2**30, major=9, minor=0),
    }
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(**(cuda_functions | changes)),
        distributed=SimpleNamespace(
            is_available=lambda: True, is_nccl_available=lambda: False, is_gloo_available=lambda: True
        ),
        ops=SimpleNamespace(mkldnn=SimpleNamespace(_is_mkldnn_bf16_supported=lambda: False)),
        bfloat16="bf16",
        ones=lambda *_, **__: Tensor(),
        zeros=lambda *_, **__: Tensor(),
        get_num_threads=lambda: 4,
    )


def test_a_cpu_build_is_no_error() -> None:
    def never() -> bool:
        raise AssertionError("a CPU build has no CUDA to ask")

    found = probe(fake_torch(is_available=never))
    assert (found.device_count, found.cuda_available, found.cuda_error) == (0, False, None)
    assert found.bf16
    assert found.bf16_cpu_native is False
    assert found.intra_op_threads == 4


def test_devices_are_listed_with_pairs_that_cannot_reach_each_other() -> None:
    found = probe(fake_torch(count=3, cuda="13.0"))
    assert found.device_names == ("GPU 0", "GPU 1", "GPU 2")
    assert found.device_memory_bytes == (2**30,) * 3
    assert found.device_capabilities == ("9.0",) * 3
    assert found.no_peer_access == ((0, 2),)
    assert to_builtins(found)["no_peer_access"] in ([[0, 2]], ((0, 2),))


def test_one_gpu_without_bf16_means_no_bf16() -> None:
    answers = iter([True, False])
    assert not probe(fake_torch(count=2, cuda="13.0", is_bf16_supported=lambda **_: next(answers))).bf16


def test_a_warning_of_cuda_becomes_the_reason() -> None:
    def complain() -> bool:
        warnings.warn("CUDA initialization: the driver is too old\nmore text", UserWarning, stacklevel=1)
        return False

    found = probe(fake_torch(count=0, cuda="13.0", is_available=complain))
    assert found.cuda_error == "CUDA initialization: the driver is too old"
    assert not found.cuda_available


def test_a_gpu_that_cannot_be_used_is_an_error_and_no_device() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")

    found = probe(fake_torch(count=2, cuda="13.0", init=fail))
    assert found.cuda_error == "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert found.device_count == 0
    assert found.device_names == ()
