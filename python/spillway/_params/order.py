# SPDX-License-Identifier: MIT
# spillway/_params/order.py - Order: in which order memory is used, learnt from the step before
from __future__ import annotations

import bisect
import collections
import itertools
from typing import Any, Deque, List, Optional, Sequence, Set

# The most uses of a place in a step that are remembered.
_USES_MAX = 64
_NEVER = 1 << 60
# Uses may come in another order within this part of the plan, as steps of an optimizer do that wait
# for copies.
_PARTS_OF_SLACK = 4
# Micro-batches of a step that are told from one another, and of how many uses these are alike.
_TRACES_MAX = 64
_PARTS_ALIKE = 8


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
        self._traces: Deque[List[Any]] = collections.deque(maxlen=2 * _TRACES_MAX)
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

    def distance(self, place: Any, beyond: int = 0) -> int:
        """The number of uses until the place's next one, of those after as many as are given. If
        not known, the place used longest ago is the farthest."""
        order = place.order
        if not order:
            return _NEVER + self.serial - int(place.last)
        at = (self.at + beyond) % len(self.plan)
        begin = bisect.bisect_left(order, at)
        for index in (*range(begin, len(order)), *range(begin)):
            if order[index] not in self._early:
                return int((order[index] - at) % len(self.plan)) + beyond
        return len(self.plan) + beyond

    def is_near(self, ahead: int, near_bytes: int) -> bool:
        """Whether the places used before that use take no more than these bytes."""
        for number in range(ahead):
            near_bytes -= self.plan[(self.at + number) % len(self.plan)].length
            if near_bytes < 0:
                return False
        return True

    def next_to_come(self) -> Optional[Any]:
        """The first use ahead whose bytes are not known to be there; None: all are."""
        while self.ahead < len(self.plan):
            index = (self.at + self.ahead) % len(self.plan)
            if index not in self._early:
                return self.plan[index]
            self.ahead += 1
        return None

    def begin_step(self) -> None:
        """Expect the uses since the last call again. If every n-th call is alike, as where the
        last of n micro-batches is followed by the optimizer's step: those since the n-th last."""
        if self._trace:
            self._traces.append(self._trace)
            self._trace = []
            traces = list(self._traces)
            self.expect([place for trace in traces[-self._period():] for place in trace])
        self._used = None

    def _period(self) -> int:
        """That is seen in most of the last traces, twice at least; of those the shortest."""
        lengths = [len(trace) for trace in self._traces]

        def seen(period: int) -> int:
            pairs = zip(reversed(lengths), reversed(lengths[:-period]))
            alike = (abs(one - other) * _PARTS_ALIKE <= one for one, other in pairs)
            count = sum(1 for _ in itertools.takewhile(bool, alike))
            return count if count >= period else 0

        return max(range(1, max(2, min(_TRACES_MAX, len(lengths)))), key=seen)

    def expect(self, places: Sequence[Any]) -> None:
        """Expect uses in this order."""
        for place in self.plan:
            place.order.clear()
        self.plan = list(places)
        self._number()

    def forget(self) -> None:
        """Expect nothing. Before many are dropped, each of which would be looked for in all steps
        that are remembered."""
        self._trace, self._used = [], None
        self._traces.clear()
        self.expect([])

    def drop(self, place: Any) -> None:
        """The place is no more."""
        for trace in (self._trace, *self._traces):
            trace[:] = [each for each in trace if each is not place]
        self._used = None if self._used is place else self._used
        if place.order:
            self.expect([each for each in self.plan if each is not place])
            place.order.clear()

    def _number(self) -> None:
        for index, place in enumerate(self.plan):
            place.order.append(index)
        self.at = self.ahead = 0
        self._early.clear()
