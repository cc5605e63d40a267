# SPDX-License-Identifier: MIT
# spillway/_offload/explain.py - the current plan, scope by scope, in the words of `spillway plan`
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Literal, Optional

from .._core.library import bytes_text

Way = Literal["keep", "spill", "recompute", "recompute, input spilled"]

WAYS: List[Way] = ["keep", "spill", "recompute", "recompute, input spilled"]
_KEEP, _SPILL = 0, 1
_FOREVER = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class ScopePlan:
    """What the plan in force does with what one scope saves in one micro-batch. Times are seconds;
    ``costs`` is how much longer the step would be by the next best way, as a share of it, with all
    other scopes as planned; None: that way does not fit, or there is none."""

    scope: str  # the module's name; "": outside of all scopes
    micro_batch: int
    saved_bytes: int
    spilled_bytes: int
    given_up_bytes: int
    recompute_seconds: Optional[float]  # to its last save; None: it cannot be recomputed
    done: Way
    why: str
    next_best: Optional[Way]
    costs: Optional[float]
    refused: str  # why it is not recomputed, whatever the plan; "": it may be
    host_bytes: int = 0  # of spilled_bytes: they stay in host memory


def _why(reason: Any, planned: Any) -> str:
    keep, spill = reason.ways[_KEEP], reason.ways[_SPILL]
    if reason.next >= len(WAYS):
        return "nothing else can be done"
    if reason.way == _KEEP:
        return "there is room, and nothing is shorter"
    if keep.fits and keep.wall_ns <= planned.wall_ns:
        return "keeping it would do as well"
    if reason.way == _SPILL:
        return "kept, others have less room" if keep.fits else "kept, it does not fit"
    if not spill.possible:
        return "kept, it does not fit, and it cannot be written"
    if not spill.fits:
        return "spilled, it would not leave in time"
    if spill.wall_ns > planned.wall_ns:
        return "the drives would take longer"
    return "spilling it would do as well"


def _costs(reason: Any, planned: Any) -> Optional[float]:
    if reason.next >= len(WAYS):
        return None
    way = reason.ways[reason.next]
    if not way.fits or way.wall_ns == _FOREVER:
        return None
    return float(way.wall_ns / planned.wall_ns - 1)


def scope_plans(reasons: List[Any], planned: Any, names: Dict[int, str],
                refused: Dict[int, str]) -> List[ScopePlan]:
    """:param names: of scopes, by their keys
    :param refused: why scopes are not recomputed, by their keys"""
    return [ScopePlan(
        scope=names.get(each.scope_key, ""),
        micro_batch=each.micro_batch,
        saved_bytes=each.saved_bytes,
        spilled_bytes=each.reason.bytes_spilled,
        given_up_bytes=each.reason.bytes_again,
        recompute_seconds=each.again_ns / 1e9 if each.may_again else None,
        done=WAYS[each.reason.way],
        why=_why(each.reason, planned),
        next_best=WAYS[each.reason.next] if each.reason.next < len(WAYS) else None,
        costs=_costs(each.reason, planned),
        refused=refused.get(each.scope_key, ""),
        host_bytes=each.reason.bytes_host) for each in reasons]


def _cells(plan: ScopePlan, has_host: bool) -> List[str]:
    costs = "does not fit" if plan.costs is None else f"{100 * plan.costs:+.2f} %"
    return [
        f"{plan.micro_batch}.{plan.scope or '(outside)'}", bytes_text(plan.saved_bytes),
        bytes_text(plan.spilled_bytes), *([bytes_text(plan.host_bytes)] if has_host else []),
        bytes_text(plan.given_up_bytes),
        "-" if plan.recompute_seconds is None else f"{plan.recompute_seconds:.4f}",
        plan.done, plan.why, plan.next_best or "-", costs if plan.next_best else "-",
        plan.refused or "-"]


def text_of(plans: List[ScopePlan], planned: Any) -> str:
    has_host = planned.bytes_host > 0
    head = ["SCOPE", "SAVES", "SPILLED", *(["IN HOST MEMORY"] if has_host else []), "GIVEN UP",
            "TIME s", "DONE", "WHY", "NEXT BEST", "COSTS", "NOT RECOMPUTED"]
    if not plans:
        return ("no plan is in force: the first step is measured, and the third is the first by a "
                "plan; modes that plan are \"fastest\" and \"budget\"")
    rows = [head, *(_cells(plan, has_host) for plan in plans)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
             for row in rows]
    return "\n".join([
        f"planned: peak {bytes_text(planned.peak_bytes)}, where keeping all takes "
        f"{bytes_text(planned.peak_keep_all_bytes)}; step {planned.wall_ns / 1e9:.4g} s, of which "
        f"{planned.again_ns / 1e9:.4g} s recomputes {planned.scopes_again} scopes and "
        f"{planned.stall_ns / 1e9:.4g} s waits; {bytes_text(planned.bytes_written)} are written" +
        (f", {bytes_text(planned.bytes_host)} stay in host memory" if has_host else ""),
        *([] if planned.feasible else ["The budget cannot be met: this is the lowest peak found."]),
        *lines])
