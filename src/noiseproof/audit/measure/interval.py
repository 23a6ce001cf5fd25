"""Estimates with their intervals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A share or a count with its 95 % interval."""

    value: float
    low: float
    high: float

    def as_count(self) -> str:
        """A count in words: ``12 (3 to 25)``."""
        return f"{self.value:.0f} ({self.low:.0f} to {self.high:.0f})"

    def as_share(self) -> str:
        """A share in words: ``3.4% (1.2% to 7.9%)``."""
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def exact_share(count: float, total: float) -> Estimate:
    """``count`` of ``total`` independent draws as a share, with its exact interval (Clopper & Pearson 1934).

    Both may be fractions: effective numbers of weighted draws.

    >>> share = exact_share(0, 10)  # 1 − 0.025^(1/10)
    >>> share.value, share.low, round(share.high, 4)
    (0.0, 0.0, 0.3085)
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    if not 0 <= count <= total or total <= 0:
        raise ValueError(f"Expected `count` in 0 … `total` and `total` > 0, got {count} and {total}.")
    low = float(betaincinv(count, total - count + 1, 0.025)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
    return Estimate(count / total, low, high)
