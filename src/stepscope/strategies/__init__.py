"""The promises of the data-parallel strategies: options, requirements, communication plan, memory plan. No torch.

One file per strategy; the deed lies under ``rank/strategies`` with the same stem.
"""

from stepscope.core.registry import Registry
from stepscope.strategies._common import Strategy

REGISTRY: Registry[Strategy] = Registry("stepscope.strategies", "STRATEGY", "strategy")
