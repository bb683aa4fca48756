"""Shapes that the time of a collective may have against its size: few parameters, each with a physical meaning.

x is log(bytes), y is log(ns). All shapes rise, with slopes from 0 (latency) to 1 (bandwidth), and all are the same up to
shifts in x and y: they know nothing of a machine's speed. What they know is how latency and bandwidth meet, as a prior
on the remaining parameters, which matters only where few sizes were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHARPNESS = 6.0
"""Of the switch between protocols: their times at the crossing are undercut by log(2) / 6, 11%, at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One shape. parameters: log(latency), log(rate at large sizes), then those with a prior.

    model(parameters, x): y [sizes]. prior: (mean, standard deviation) of each parameter after the first two. starts: of
    these, where the search begins. count: of free parameters.
    """

    key: str
    model: Callable[[Floats, Floats], Floats]
    prior: tuple[tuple[float, float], ...] = ()
    starts: tuple[tuple[float, ...], ...] = ((),)

    @property
    def count(self) -> int:
        return 2 + len(self.prior)


def _line(p: Floats, x: Floats) -> Floats:
    return np.asarray(np.logaddexp(p[0], x - p[1]))


def _pipelined(p: Floats, x: Floats) -> Floats:
    """latency + S / rate + 2 k sqrt(latency x S / rate): k = 1 is (sqrt(latency) + sqrt(S / rate))^2."""
    latency, wire = np.full_like(x, p[0]), x - p[1]
    return np.asarray(np.logaddexp(np.logaddexp(latency, wire), np.log(2) + p[2] + (latency + wire) / 2))


def _protocols(p: Floats, x: Floats) -> Floats:
    """The smooth minimum of three lines: from lowest latency and lowest rate to highest latency and highest rate."""
    latency, wire = p[0], x - p[1]
    slower, costlier = np.exp(p[2]), np.exp(p[3])
    lines = np.stack(
        [
            np.logaddexp(latency, wire + costlier),
            np.logaddexp(latency + slower / 2, wire + costlier / 2),
            np.logaddexp(latency + slower, wire),
        ]
    )
    least = lines.min(axis=0)
    return np.asarray(least - np.log(np.exp(-_SHARPNESS * (lines - least)).sum(axis=0)) / _SHARPNESS)


LINE = Family(key="line", model=_line)

# A message cut into the best number of pieces for a pipeline of s steps costs s alpha + S / beta + 2 sqrt(s alpha S / beta)
# (R. Rabenseifner, J. L. Traeff; E. Chan et al., "Collective communication", 2007): k = 1. Libraries cut at fixed sizes and
# ramp channels up with the size, which lies on either side of it: k from 0.4 to 1.1.
PIPELINED = Family(key="pipelined", model=_pipelined, prior=((-0.4, 0.5),), starts=((-0.4,),))

# log of log: latency of the last protocol over that of the first e^0.7 to e^2 = 2 to 7, rate over rate e^0.8 to e^2.2 =
# 2.3 to 9: NCCL's own tables put Simple against LL at 2 to 5 times the latency and 2 to 8 times the rate
# (src/graph/tuning.cc, NCCL 2.20 to 2.27).
PROTOCOLS = Family(
    key="protocols",
    model=_protocols,
    prior=((0.2, 0.5), (0.3, 0.5)),
    starts=((0.2, 0.5), (0.5, 0.7)),
)

FAMILIES = (LINE, PIPELINED, PROTOCOLS)
"""From few to many parameters."""

_STEPS = 60
_ENOUGH = 1e-7  # relative decrease of the cost below which the search ends
_OUTLYING = 2.0  # standard deviations from which on a size counts less than its square


def most_probable(family: Family, x: Floats, y: Floats, *, sd: Floats) -> tuple[Floats, Floats]:
    """Parameters [count] that make ``y`` and the prior most likely, and their covariance [count, count].

    sd: standard deviation of ``y`` around the family [sizes]; sizes far off count less (soft L1). Levenberg-Marquardt
    from each of the family's starts.
    """
    first = [float(y.min()) - 0.05, float(x[-1] - y[-1]) + 0.1]
    found = [_descend(family, x, y, sd, np.array([*first, *start])) for start in family.starts]
    parameters = min(found, key=lambda one: one[0])[1]
    residual, jacobian = _linearised(family, x, y, sd, parameters)
    normal = (jacobian * _weights(residual, x.size)[:, None]).T @ jacobian
    return parameters, np.asarray(np.linalg.inv(normal + 1e-3 * np.eye(family.count)), dtype=np.float64)


def gradient(family: Family, parameters: Floats, x: Floats) -> Floats:
    """d y / d parameter [sizes, parameters]."""
    step = 1e-5
    here = family.model(parameters, x)
    moved = (family.model(parameters + step * unit, x) for unit in np.eye(parameters.size))
    return np.stack([(there - here) / step for there in moved], axis=1)


def _descend(family: Family, x: Floats, y: Floats, sd: Floats, start: Floats) -> tuple[float, Floats]:
    parameters, damping = start, 1e-2
    residual, jacobian = _linearised(family, x, y, sd, parameters)
    cost = _cost(residual, x.size)
    for _ in range(_STEPS):
        weighted = jacobian * _weights(residual, x.size)[:, None]
        normal = weighted.T @ jacobian
        damped = normal + damping * np.diag(np.diag(normal) + 1e-6)
        tried = parameters - np.clip(np.linalg.solve(damped, weighted.T @ residual), -2, 2)
        after = _residual(family, x, y, sd, tried)
        if (new := _cost(after, x.size)) >= cost:
            damping *= 4
            if damping > 1e8:
                break
            continue
        decrease, cost, parameters, damping = cost - new, new, tried, damping / 3
        if decrease < _ENOUGH * cost:
            break
        residual, jacobian = _linearised(family, x, y, sd, parameters)
    return cost, parameters


def _residual(family: Family, x: Floats, y: Floats, sd: Floats, parameters: Floats) -> Floats:
    """Of the sizes, then of the prior, in standard deviations."""
    prior = [(p - mean) / width for p, (mean, width) in zip(parameters[2:], family.prior, strict=True)]
    return np.concatenate([(family.model(parameters, x) - y) / sd, prior])


def _linearised(family: Family, x: Floats, y: Floats, sd: Floats, parameters: Floats) -> tuple[Floats, Floats]:
    prior = np.zeros((len(family.prior), family.count))
    for index, (_, width) in enumerate(family.prior):
        prior[index, index + 2] = 1 / width
    jacobian = np.concatenate([gradient(family, parameters, x) / sd[:, None], prior])
    return _residual(family, x, y, sd, parameters), jacobian


def _weights(residual: Floats, sizes: int) -> Floats:
    weights = 1 / np.sqrt(1 + (residual / _OUTLYING) ** 2)
    weights[sizes:] = 1.0
    return np.asarray(weights)


def _cost(residual: Floats, sizes: int) -> float:
    square = (residual[:sizes] / _OUTLYING) ** 2
    return float(2 * _OUTLYING**2 * (np.sqrt(1 + square) - 1).sum() + (residual[sizes:] ** 2).sum())
