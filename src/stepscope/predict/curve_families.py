"""Shapes that the time of a collective may have against its size: few parameters, each with a physical meaning.

x is log(bytes), y is log(ns). All shapes rise, with slopes from 0 (latency) to 1 (bandwidth), and all are the same up to
shifts in x and y: they know nothing of a machine's speed. What they know is how latency and bandwidth meet, as a prior
on the remaining parameters, which matters only where few sizes were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHARPNESS = 6.0
"""Of the switch between protocols: their times at the crossing are undercut by log(2) / 6, 11%, at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFamily:
    """One shape. parameters: log(latency), log(rate at large sizes), then those with a prior.

    model(parameters [..., count], x [..., sizes]): y [..., sizes]. prior: (mean, standard deviation) of each parameter
    after the first two. starts: of these, where the search begins. count: of free parameters.
    """

    key: str
    model: Callable[[Floats, Floats], Floats]
    prior: tuple[tuple[float, float], ...] = ()
    starts: tuple[tuple[float, ...], ...] = ((),)

    @property
    def count(self) -> int:
        return 2 + len(self.prior)


def _line(p: Floats, x: Floats) -> Floats:
    return np.asarray(np.logaddexp(p[..., 0, None], x - p[..., 1, None]))


def _pipelined(p: Floats, x: Floats) -> Floats:
    """latency + S / rate + 2 k sqrt(latency x S / rate): k = 1 is (sqrt(latency) + sqrt(S / rate))^2."""
    latency, wire = p[..., 0, None], x - p[..., 1, None]
    middle = np.log(2) + p[..., 2, None] + (latency + wire) / 2
    return np.asarray(np.logaddexp(np.logaddexp(latency, wire), middle))


def _protocols(p: Floats, x: Floats) -> Floats:
    """The smooth minimum of three lines: from lowest latency and lowest rate to highest latency and highest rate."""
    latency, wire = p[..., 0, None], x - p[..., 1, None]
    slower, costlier = np.exp(p[..., 2, None]), np.exp(p[..., 3, None])
    low = np.logaddexp(latency, wire + costlier)
    middle = np.logaddexp(latency + slower / 2, wire + costlier / 2)
    high = np.logaddexp(latency + slower, wire)
    least = np.minimum(np.minimum(low, middle), high)
    share = np.exp(-_SHARPNESS * (low - least)) + np.exp(-_SHARPNESS * (middle - least))
    share += np.exp(-_SHARPNESS * (high - least))
    return np.asarray(least - np.log(share) / _SHARPNESS)


LINE = CurveFamily(key="line", model=_line)

# A message cut into the best number of pieces for a pipeline of s steps costs s alpha + S / beta + 2 sqrt(s alpha S / beta)
# (R. Rabenseifner, J. L. Traeff; E. Chan et al., "Collective communication", 2007): k = 1. Libraries cut at fixed sizes and
# ramp channels up with the size, which lies on either side of it: k from 0.4 to 1.1.
PIPELINED = CurveFamily(key="pipelined", model=_pipelined, prior=((-0.4, 0.5),), starts=((-0.4,),))

# log of log: latency of the last protocol over that of the first e^0.7 to e^2 = 2 to 7, rate over rate e^0.8 to e^2.2 =
# 2.3 to 9: NCCL's own tables put Simple against LL at 2 to 5 times the latency and 2 to 8 times the rate
# (src/graph/tuning.cc, NCCL 2.20 to 2.27).
PROTOCOLS = CurveFamily(
    key="protocols",
    model=_protocols,
    prior=((0.2, 0.5), (0.3, 0.5)),
    starts=((0.2, 0.5), (0.5, 0.7)),
)

FAMILIES = (LINE, PIPELINED, PROTOCOLS)
"""From few to many parameters."""

_MOVE = 1e-5  # of a parameter, for a derivative
_STEPS = 60
_ENOUGH = 1e-7  # relative decrease of the cost below which the search ends
_OUTLYING = 2.0  # standard deviations from which on a size counts less than its square


def most_probable(family: CurveFamily, x: Floats, y: Floats, *, sd: Floats) -> tuple[Floats, Floats]:
    """Parameters [fits, count] that make ``y`` and the prior most likely, and their covariance [fits, count, count].

    x, y, sd: [fits, sizes], each row a fit of its own. sd: standard deviation of ``y`` around the family; sizes far off
    count less (soft L1). Levenberg-Marquardt from each of the family's starts. All searches take their steps together:
    on arrays as small as one fit's, calling numpy costs far more than what it computes.
    """
    starts = len(family.starts)
    first = np.stack([y.min(axis=1) - 0.05, x[:, -1] - y[:, -1] + 0.1], axis=1)
    from_each = [
        np.concatenate([first, np.broadcast_to(start, (len(x), len(start)))], axis=1) for start in family.starts
    ]
    every = _Data(family=family, x=np.tile(x, (starts, 1)), y=np.tile(y, (starts, 1)), sd=np.tile(sd, (starts, 1)))
    costs, ends = _descend(every, np.concatenate(from_each))
    best = costs.reshape(starts, len(x)).argmin(axis=0)
    parameters = ends.reshape(starts, len(x), family.count)[best, np.arange(len(x))]
    normal, _ = _normal_equations(*_linearised(_Data(family=family, x=x, y=y, sd=sd), parameters), x.shape[1])
    return parameters, np.asarray(np.linalg.inv(normal + 1e-3 * np.eye(family.count)), dtype=np.float64)


def gradient(family: CurveFamily, parameters: Floats, x: Floats) -> Floats:
    """d y / d parameter [sizes, parameters]."""
    # in memory by size, as BLAS gets it: another order of its sums would change last digits
    return np.ascontiguousarray(_values_and_gradient(family, parameters, x)[1].T)


def _values_and_gradient(family: CurveFamily, parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
    """y [..., sizes], and its forward differences [..., parameters, sizes]; the model is asked once for both."""
    values = family.model(parameters[..., None, :] + _moves(family.count), x[..., None, :])
    here = values[..., :1, :]
    return here[..., 0, :], (values[..., 1:, :] - here) / _MOVE


@cache
def _moves(count: int) -> Floats:
    """[1 + count, count]: stay, then move one parameter each."""
    return np.concatenate([np.zeros((1, count)), _MOVE * np.eye(count)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """What the searches of one family fit: each row of ``x``, ``y`` and ``sd`` [searches, sizes] is one search's."""

    family: CurveFamily
    x: Floats
    y: Floats
    sd: Floats

    def of(self, some: NDArray[np.bool_]) -> _Data:
        return _Data(family=self.family, x=self.x[some], y=self.y[some], sd=self.sd[some])


def _descend(data: _Data, start: Floats) -> tuple[Floats, Floats]:
    """Cost [searches] and parameters [searches, count] at the end of each search; those at their end leave the others."""
    sizes, searching = data.x.shape[1], np.arange(len(start))
    end_cost, end = np.empty(len(start)), np.empty_like(start)
    parameters, damping = start, np.full(len(start), 1e-2)
    residual, jacobian = _linearised(data, parameters)
    cost = _cost(residual, sizes)
    diagonal = np.arange(data.family.count)
    for _ in range(_STEPS):
        normal, pull = _normal_equations(residual, jacobian, sizes)
        on_diagonal = normal[:, diagonal, diagonal]
        normal[:, diagonal, diagonal] = on_diagonal + damping[:, None] * (on_diagonal + 1e-6)
        tried = parameters - np.clip(np.linalg.solve(normal, pull)[..., 0], -2, 2)
        residual_there, jacobian_there = _linearised(data, tried)
        new = _cost(residual_there, sizes)
        worse = new >= cost
        damping = np.where(worse, damping * 4, damping / 3)
        at_end = np.where(worse, damping > 1e8, cost - new < _ENOUGH * new)
        cost, parameters = np.where(worse, cost, new), np.where(worse[:, None], parameters, tried)
        residual = np.where(worse[:, None], residual, residual_there)
        jacobian = np.where(worse[:, None, None], jacobian, jacobian_there)
        if at_end.any():
            end_cost[searching[at_end]], end[searching[at_end]] = cost[at_end], parameters[at_end]
            on = ~at_end
            searching, data, cost, parameters = searching[on], data.of(on), cost[on], parameters[on]
            damping, residual, jacobian = damping[on], residual[on], jacobian[on]
            if not searching.size:
                break
    end_cost[searching], end[searching] = cost, parameters
    return end_cost, end


def _linearised(data: _Data, parameters: Floats) -> tuple[Floats, Floats]:
    """Residuals of the sizes, then of the prior, in standard deviations, and d residual / d parameter."""
    family, sizes = data.family, data.x.shape[1]
    values, slopes = _values_and_gradient(family, parameters, data.x)
    residual = np.empty((len(parameters), sizes + len(family.prior)))
    jacobian = np.zeros((*residual.shape, family.count))
    residual[:, :sizes] = (values - data.y) / data.sd
    np.divide(np.swapaxes(slopes, 1, 2), data.sd[..., None], out=jacobian[:, :sizes])
    for index, (mean, width) in enumerate(family.prior):
        residual[:, sizes + index] = (parameters[:, 2 + index] - mean) / width
        jacobian[:, sizes + index, 2 + index] = 1 / width
    return residual, jacobian


def _normal_equations(residual: Floats, jacobian: Floats, sizes: int) -> tuple[Floats, Floats]:
    """Matrix [searches, count, count] and right side [searches, count, 1] of the weighted least squares."""
    weights = 1 / np.sqrt(1 + (residual / _OUTLYING) ** 2)
    weights[:, sizes:] = 1.0
    weighted = np.swapaxes(jacobian * weights[..., None], -1, -2)
    return weighted @ jacobian, weighted @ residual[..., None]


def _cost(residual: Floats, sizes: int) -> Floats:
    square = (residual[:, :sizes] / _OUTLYING) ** 2
    outer = 2 * _OUTLYING**2 * (np.sqrt(1 + square) - 1).sum(axis=1)
    return np.asarray(outer + (residual[:, sizes:] ** 2).sum(axis=1))
