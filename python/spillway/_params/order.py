# SPDX-License-Identifier: MIT
# spillway/_params/order.py - Order: in which order memory is used, learnt from the step before
from __future__ import annotations

import bisect
from typing import Any, List, Optional, Sequence, Set

# The most uses of a place in a step that are remembered.
_USES_MAX = 64
_NEVER = 1 << 60
# Uses may come in another order within this part of the plan, as steps of an optimizer do that wait
# for copies.
_PARTS_OF_SLACK = 4


class Order:
    """The uses of places in a step, expected again in the next one. ``at``: index of the next use
    in the plan; ``ahead``: this many uses from there on have their bytes, or these are coming;
    ``_early``: indices of uses from there on that have come before it. Not locked: its owner is."""

    def __init__(self) -> None:
        self.plan: List[Any] = []
        self.at = self.ahead = 0
        self.serial = 0
        self._early: Set[int] = set()
        self._trace: List[Any] = []
        self._used: Optional[Any] = None  # the last place used in this step

    def note(self, place: Any, places: int) -> None:
        """Note a use, to find the position in the plan. Consecutive uses of one place count as
        one.

        :param places: how many there are
        """
        self.serial += 1
        place.last = self.serial
        if place is self._used:
            return
        self._used = place
        if len(self._trace) < _USES_MAX * max(1, places):
            self._trace.append(place)
        distance = self.distance(place)
        if distance < _NEVER and distance <= self._behind(place):
            self._came((self.at + distance) % len(self.plan), distance)

    def _behind(self, place: Any) -> int:
        """How many uses ago the place's last one was in the plan: one that comes late, as others
        came before it, does not begin the plan again."""
        order = place.order
        index = bisect.bisect_left(order, self.at)
        return int(self.at - order[index - 1] if index else self.at + len(self.plan) - order[-1])

    def _came(self, index: int, distance: int) -> None:
        self._early.add(index)
        slack = len(self.plan) // _PARTS_OF_SLACK
        while self.at in self._early or distance > slack:
            self._early.discard(self.at)
            self.at = (self.at + 1) % len(self.plan)
            self.ahead = max(0, self.ahead - 1)
            distance -= 1

    def distance(self, place: Any) -> int:
        """The number of uses until the place's next one. If not known, the place used longest
        ago is the farthest."""
        order = place.order
        if not order:
            return _NEVER + self.serial - int(place.last)
        begin = bisect.bisect_left(order, self.at)
        for index in (*range(begin, len(order)), *range(begin)):
            if order[index] not in self._early:
                return int((order[index] - self.at) % len(self.plan))
        return len(self.plan)

    def next_to_come(self) -> Optional[Any]:
        """The first use ahead whose bytes are not known to be there; None: all are."""
        while self.ahead < len(self.plan):
            index = (self.at + self.ahead) % len(self.plan)
            if index not in self._early:
                return self.plan[index]
            self.ahead += 1
        return None

    def begin_step(self) -> None:
        """Expect the uses since the last call again."""
        if self._trace:
            trace, self._trace = self._trace, []
            self.expect(trace)
        self._used = None

    def expect(self, places: Sequence[Any]) -> None:
        """Expect uses in this order."""
        for place in self.plan:
            place.order.clear()
        self.plan = list(places)
        self._number()

    def drop(self, place: Any) -> None:
        """The place is no more."""
        self._trace = [each for each in self._trace if each is not place]
        self._used = None if self._used is place else self._used
        if place.order:
            self.expect([each for each in self.plan if each is not place])
            place.order.clear()

    def _number(self) -> None:
        for index, place in enumerate(self.plan):
            place.order.append(index)
        self.at = self.ahead = 0
        self._early.clear()
