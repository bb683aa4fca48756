"""What each module of the model takes, from a trace that marks module calls."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One module of one rank, over the capture, without the modules inside it.

    forward_ns, backward_ns: computation that its calls launched, and that autograd ran for them. comm_ns: collectives that
    either launched; None on CPU traces. kept_bytes: allocated less released while it ran forward, most of it activations;
    None without memory events.
    """

    rank: int
    module: str
    calls: int
    forward_ns: int
    backward_ns: int
    comm_ns: int | None
    kept_bytes: int | None
