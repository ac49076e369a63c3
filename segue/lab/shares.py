"""Whether a share of right answers is clearly above what a control reaches."""

import math

MARGIN, ERRORS = 0.1, 2.0
"""A share must be this much above every control's, and by so many standard errors."""

CONDITION = f"shown if {100 * MARGIN:.0f} points and {ERRORS:g} standard errors above all of them"


def ahead(right: float, control: float, count: int) -> bool:
    """Whether a share of `count` answers is above a control's by the margin and by more than chance gives."""
    error = math.sqrt((right * (1 - right) + control * (1 - control)) / count)
    return right - control > max(MARGIN, ERRORS * error)


def listed(known: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in known.items())
