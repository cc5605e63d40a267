# SPDX-License-Identifier: MIT
# spillway/_params/on_device.py - Window: which parameters of a model on a device have memory there
"""A parameter on a device has a twin in pinned memory of the host, which is a parameter on drives
like any other (parameters.py): it is prefetched, evicted, stepped by an optimizer and committed.
The window is the device's memory above it. Before a use a twin's bytes are copied to the device, on
a stream of the window's own; afterwards the memory is released. Which parameters are in the
window follows from the order of uses, as in the host.

OUT     the parameter's storage has no memory
MOVING  it has, and a copy into it is being begun; if that ends so, Ctrl-C came in between
IN      its bytes are the parameter's, for what a stream is given after ``arrived``

Streams. Memory is allocated on the stream that computes, and released to it: a copy into it
begins after all that this stream was given before, so whatever still reads what was there is first.
Other streams that have used it, the window's own among them, are waited for by that stream when the
memory is released. So the host may be as far ahead as it likes, and no memory waits for it.

Invariants:
D1  a storage has memory if and only if the place is not OUT
D2  the twin has the parameter's bytes, unless the place is IN and was changed there
D3  a twin is held, and its memory is not freed, while a copy from or to it may run
D4  memory is released only when nothing has it but the parameter and what is saved of it
"""
from __future__ import annotations

import collections
import inspect
import logging
import weakref
from typing import Any, Deque, Dict, Iterable, Sequence, Tuple

import torch
from torch import Tensor, nn

from .._core.library import SpillwayError, bytes_text
from .._core.torch_compat import storage_of, without_torch_function
from .conversion import adopt, part, why_not
from .order import Order
from .residency import RESIDENT, Memory, Owner, Place, Use, by_storage

_log = logging.getLogger("spillway")

OUT, MOVING, IN = "out", "moving", "in"

# What these return may be written to without PyTorch counting it.
_UNCOUNTED = {inspect.getattr_static(Tensor, name).__get__
              for name in ("data", "__cuda_array_interface__")
              if hasattr(inspect.getattr_static(Tensor, name, None), "__get__")}
_UNCOUNTED |= {getattr(Tensor, name) for name in ("data_ptr", "__dlpack__", "storage",
                                                  "share_memory_") if hasattr(Tensor, name)}


def _changes_uncounted(func: Any) -> bool:
    """Whether a function may change what it is given without PyTorch counting that, as fused steps
    of optimizers do, and operators that others have registered."""
    name = getattr(func, "__name__", None)
    return str(name).startswith("_fused_") or isinstance(
        func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


_CAPTURED = ("parameter {} is on drives, and cannot be used while a graph is captured: the graph "
             "would have an address whose memory has other bytes when it is replayed. Capture "
             "without parameters=True")
_MOVED = ("parameter {} was given memory of another device, type or shape: with parameters=True it "
          "stays as it was when offload() was called. Call off.parameters_to_memory() first, and "
          "then move or convert the model")


class DevicePlace(Memory):
    """The memory of a parameter on a device. ``twin``: its parameter in the host; ``stream``: that
    its memory is of; ``users``: streams that have used it since ``arrived``; ``version``: PyTorch's
    count of changes when it was the same as the twin; ``touched``: it may have been changed without
    being counted; ``escaped``: others have had its memory, and may have used it anywhere;
    ``stale``: the twin has been changed while others had the memory."""

    __slots__ = ("twin", "state", "stream", "users", "arrived", "version", "touched", "escaped",
                 "stale", "failed")

    def __init__(self, owner: "Window", param: Tensor, twin: Any) -> None:
        super().__init__(owner, param)
        self.twin = twin
        self.state = IN
        self.stream: Any = None
        self.users: Dict[int, Any] = {}
        self.arrived: Any = None
        self.version = param._version
        self.stale = self.failed = False
        self.touched = self.escaped = self.has_other_holders()  # from before

    def __repr__(self) -> str:
        return f"<{self.on_drives.name} on {self.owner.device}: {self.length} bytes, {self.state}>"

    @property
    def on_drives(self) -> Place:
        place: Place = self.twin._spillway_place
        return place

    def was_given(self, func: Any, addresses: bool) -> None:
        super().was_given(func, addresses)
        # A view's ``data`` is changed without a word, too.
        shared = self.has_other_holders()
        self.touched = self.touched or shared or func in _UNCOUNTED or _changes_uncounted(func)
        self.escaped = self.escaped or addresses or shared

    def fits(self, param: Any) -> bool:
        return (super().fits(param) and param.shape == self.twin.shape
                and bool(param.is_contiguous()))

    def noticed(self) -> str:
        """The state, corrected if Ctrl-C came between giving memory back and noting that."""
        if self.state == IN and self.storage.nbytes() == 0:
            self.state = OUT
        return self.state


def _bytes_in(storage: Any) -> Tensor:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


class Window(Owner):
    """The parameters of one model, or of several, on one device.

    :param drives: has the twins
    :param table: as _gpu.accelerator.Table
    """

    def __init__(self, drives: Any, table: Any, device: torch.device, limit_bytes: int) -> None:
        super().__init__()
        self.drives = drives
        self.device = device
        self.closed = False
        self.limit_bytes = limit_bytes
        self._table = table
        self._side = table.new_stream(device)
        self._seen: Dict[int, Any] = {}  # streams that parameters were used on
        self._places: Dict[DevicePlace, "weakref.ReferenceType[Any]"] = {}
        self._in: Dict[DevicePlace, None] = {}  # places that are not OUT
        # Copies from twins that may not have ended: (event, bytes, use of the twin, its memory).
        self._flights: Deque[Tuple[Any, int, Use, Any]] = collections.deque()
        self._order = Order()
        self.bytes_max = self.bytes_over = self.bytes_copied_in = self.bytes_copied_out = 0
        self._said_over = False

    # ---- Which parameters ------------------------------------------------------------------------

    def adopt(self, param: Any, name: str, least_bytes: int = 0) -> bool:
        """Take over a parameter. Return: False if it must stay on the device.

        :raises RuntimeError: the system pins no more memory
        :raises SpillwayError: a drive failed
        """
        if why_not(param, least_bytes, self.device.type) is not None:
            return False
        with self._lock, torch.no_grad():
            self.drives.make_room(param.numel() * param.element_size())
            twin = nn.Parameter(self._table.pinned(param.shape, param.dtype), requires_grad=False)
            twin.copy_(param)
            if not self.drives.adopt(twin, name):
                raise RuntimeError(f"the twin of {name} in the host: "
                                   f"{why_not(twin, least_bytes)}")
            place = DevicePlace(self, param, twin)
            place.stream = self._stream()
            place.last = self._order.serial = self._order.serial + 1
            self._places[place] = weakref.ref(param, self._when_gone(place))
            adopt(param, place)
            self._in[place] = None  # last: from here on its memory may go
            self._room(0)
        return True

    def check_alike(self, param: Any, other: Any) -> None:
        """:raises RuntimeError: a parameter is not to become what its twin cannot be"""
        place = param._spillway_place
        if (other.device != self.device or other.dtype != place.twin.dtype
                or other.shape != place.twin.shape):
            raise RuntimeError(_MOVED.format(place.on_drives.name))

    def release(self, param: Any, place: DevicePlace) -> None:
        """Make it an ordinary parameter on the device.

        :raises SpillwayError: it cannot be read; nothing is changed
        """
        with self._lock:
            use = self.hold([place])
            part(param, place)
            self._drop(place)
            del use

    def moved(self, param: Any, place: DevicePlace) -> None:
        """A parameter was given other memory, or other strides.

        :raises RuntimeError: other than its twin
        """
        with self._lock, without_torch_function():
            self.check_alike(param, param)
            reason = why_not(_as_plain(param), 0, self.device.type)
            if storage_of(param)._cdata == place.storage._cdata:
                reason = "its elements are in another order"
            if reason is not None:  # a copy of it would not change with what it shares memory with
                _log.warning("parameter %s stays on %s from now on: %s", place.on_drives.name,
                             self.device, reason)
                part(param, place)
                self._drop(place)
                return
            if place.noticed() == IN:
                self._order_streams(place)
            by_storage.pop(place.storage._cdata, None)
            place.storage = storage_of(param)
            place.views = {}  # those of before are of the other memory
            by_storage[place.storage._cdata] = place
            place.stream, place.users, place.arrived = self._stream(), {}, None
            place.touched, place.stale = True, False
            place.state = IN
            self._in[place] = None

    def _drop(self, place: DevicePlace) -> None:
        self._places.pop(place, None)
        self._in.pop(place, None)
        if by_storage.get(place.storage._cdata) is place:
            del by_storage[place.storage._cdata]
        self._order.drop(place)
        if place.noticed() == IN:  # memory that is freed with the last view of it
            self._order_streams(place)
        elif place.state == MOVING:
            self._recover(place)

    def _reap_freed(self) -> None:
        while self._gone:
            self._drop(self._gone.pop())
        while self._flights and not self._places:
            self._land(wait=True)

    def expect(self, params: Iterable[Any]) -> None:
        """Expect uses in this order, before a step was seen."""
        with self._lock:
            places = (getattr(param, "_spillway_place", None) for param in params)
            self._order.expect([place for place in places if isinstance(place, DevicePlace)])

    def set_limit(self, limit_bytes: int) -> None:
        with self._lock:
            self.limit_bytes = limit_bytes
            self._room(0)

    @property
    def memory_bytes(self) -> int:
        return sum(place.length for place in list(self._in))

    # ---- Uses ------------------------------------------------------------------------------------

    def hold(self, places: Iterable[DevicePlace]) -> Use:
        """Bring places onto the device, for as long as the returned object exists; what the current
        stream is given from now on finds their bytes.

        :raises SpillwayError: a place cannot be read
        :raises RuntimeError: a graph is being captured, or the device has no memory
        """
        places = tuple(places)
        use = Use()
        with self._lock:
            if self._table.capturing():
                raise RuntimeError(_CAPTURED.format(places[0].on_drives.name if places else ""))
            stream = self._stream()
            self._seen.setdefault(stream.stream_id, stream)
            try:
                for place in places:
                    place.hold(use)
                for place in places:
                    self._use(place, stream)
                self._prefetch(stream)
            except BaseException:
                del use
                raise
        return use

    def released(self) -> None:
        """A use has ended: places beyond the limit may be released."""
        if self.memory_bytes > self.limit_bytes:
            with self._lock:
                self._room(0)

    def _stream(self) -> Any:
        return self._table.current_stream(self.device)

    def _use(self, place: DevicePlace, stream: Any) -> None:
        if place not in self._places:  # saved for a backward pass, and on the device for good
            if place.storage.nbytes() == 0:
                raise RuntimeError("a parameter that was on drives is used, and is no more")
        else:
            self._order.note(place, len(self._places))
            self._have(place, stream)
        if stream.stream_id not in place.users:
            if place.arrived is not None:
                self._table.wait(stream, place.arrived)
            place.users[stream.stream_id] = stream

    def _have(self, place: DevicePlace, stream: Any) -> None:
        if place.noticed() == MOVING:
            self._recover(place)
        if place.state == OUT:
            self._room(place.length)
            self._bring(place, stream)
        elif place.stale:
            self._refresh(place)

    def _prefetch(self, stream: Any) -> None:
        """Begin the copies of the next uses, as far as there is room, and as far as their bytes are
        in the host."""
        order = self._order
        self.drives.go_on()
        while not self.closed:
            place = order.next_to_come()
            if place is None:
                return
            if place.noticed() == OUT:
                twin = place.on_drives
                self._land(wait=False)
                if (twin.state != RESIDENT or not self._may_fly(place.length)
                        or not self._room(place.length, nearer_than=order.ahead)):
                    return
                try:
                    self._bring(place, stream)
                except (SpillwayError, RuntimeError):  # the use itself will raise it
                    return
            order.ahead += 1

    # ---- Copies ----------------------------------------------------------------------------------

    def _may_fly(self, length: int) -> bool:
        """Whether a twin of that length may be held beside those that are copied (D3): the rest of
        the host's memory is for what comes from drives."""
        flying = sum(length for _, length, *_ in self._flights)
        return not flying or flying + length <= self.drives.limit_bytes // 2

    def _land(self, wait: bool) -> None:
        """Let go of the twins whose copies have ended; one at least, if there is one."""
        while self._flights and (wait or self._table.done(self._flights[0][0])):
            if wait:
                self._table.finish(self._flights[0][0])
                wait = False
            self._flights.popleft()

    def _bring(self, place: DevicePlace, stream: Any) -> None:
        self._land(wait=False)
        while not self._may_fly(place.length):
            self._land(wait=True)
        use = self.drives.hold([place.on_drives])
        place.stream, place.users, place.arrived = stream, {}, None
        place.touched = place.escaped = False
        self._in[place] = None
        place.state = MOVING
        try:
            with self._table.on(stream):
                place.storage.resize_(place.length)
            self._copy_in(place, use)
        except BaseException:
            self._recover(place)
            raise
        self.bytes_max = max(self.bytes_max, self.memory_bytes)

    def _copy_in(self, place: DevicePlace, use: Use) -> None:
        """Copy the twin's bytes to where the place's stream, and others that have used it, are."""
        table, side = self._table, self._side
        for stream in {**place.users, place.stream.stream_id: place.stream}.values():
            table.wait(side, table.record(stream))
        table.copy(_bytes_in(place.storage), _bytes_in(place.on_drives.storage), side)
        arrived = table.record(side)
        self._flights.append((arrived, place.length, use, place.on_drives.storage))
        param = self._places[place]()
        place.version = param._version if param is not None else 0
        place.stale = place.failed = False
        place.arrived, place.users = arrived, {}
        place.state = IN
        self.bytes_copied_in += place.length

    def _recover(self, place: DevicePlace) -> None:
        """A copy onto the device was not begun, or not noted: undo it."""
        self._table.finish(self._table.record(self._side))
        place.storage.resize_(0)
        place.state = OUT
        self._in.pop(place, None)

    def _is_changed(self, place: DevicePlace) -> bool:
        """Whether the place may have other bytes than its twin (D2)."""
        param = self._places[place]()
        return place.touched or (param is not None and param._version != place.version)

    def _copy_out(self, place: DevicePlace) -> None:
        """The twin gets what was changed on the device. The host waits for it.

        :raises SpillwayError: the twin cannot be had; nothing is changed
        """
        table, side = self._table, self._side
        self._land(wait=False)
        use = self.drives.hold([place.on_drives])
        param = self._places[place]()
        version = place.version if param is None else param._version
        try:
            streams = {**self._seen} if place.escaped else {**place.users}
            streams[place.stream.stream_id] = place.stream
            for stream in streams.values():
                table.wait(side, table.record(stream))
            table.copy(_bytes_in(place.on_drives.storage), _bytes_in(place.storage), side)
        finally:
            table.finish(table.record(side))
            del use
        # Who has the memory, or its address, can change it again without being counted.
        place.version = version
        place.touched = place.touched and (place.pinned or place.has_other_holders())
        self.bytes_copied_out += place.length

    def _order_streams(self, place: DevicePlace) -> None:
        """What the place's stream is given from now on comes after all uses of its memory."""
        table, own = self._table, place.stream
        if place.arrived is not None and own.stream_id not in place.users:
            table.wait(own, place.arrived)
        for stream in (self._seen if place.escaped else place.users).values():
            if stream.stream_id != own.stream_id:
                table.wait(own, table.record(stream))

    def _give_back(self, place: DevicePlace) -> bool:
        """Give the memory back, with the bytes in the twin. Return: False if that cannot be."""
        if place.failed:
            return False
        try:
            if not place.stale and self._is_changed(place):
                self._copy_out(place)
        except SpillwayError as error:
            _log.warning("parameter %s stays on the device, since it cannot be moved: %s",
                         place.on_drives.name, error.strerror)
            place.failed = True
            return False
        self._order_streams(place)
        place.storage.resize_(0)
        place.state = OUT
        self._in.pop(place, None)
        return True

    def _room(self, need_bytes: int, nearer_than: int = -1) -> bool:
        """Release the places whose next use is farthest away, until there is room for this many
        bytes.

        :param nearer_than: places used sooner than that stay
        :return: whether there is room
        """
        self._reap_freed()
        over = self.memory_bytes + need_bytes - self.limit_bytes
        if over <= 0 or self.closed:
            return True
        found = [(self._order.distance(place), number, place)
                 for number, place in enumerate(list(self._in)) if not place.held]
        for distance, _, place in sorted(found, key=lambda each: each[:2], reverse=True):
            if distance <= nearer_than:
                break
            if place.noticed() == MOVING:
                self._recover(place)
            elif place.state == OUT:
                self._in.pop(place, None)
            elif not place.is_alone() or not self._give_back(place):
                continue
            over -= place.length
            if over <= 0:
                return True
        if nearer_than < 0:
            self._note_over(over)
        return False

    def _note_over(self, over_bytes: int) -> None:
        self.bytes_over = max(self.bytes_over, over_bytes)
        if not self._said_over:
            self._said_over = True
            _log.info("parameters take %s more of the memory of %s than they were given: that much "
                      "is in use at once, for example by views of them or a state_dict()",
                      bytes_text(over_bytes), self.device)

    def counts(self) -> Dict[str, int]:
        """As ParameterStats has them."""
        with self._lock:
            return {"device_limit_bytes": self.limit_bytes, "device_bytes": self.memory_bytes,
                    "device_bytes_max": self.bytes_max, "device_bytes_over": self.bytes_over,
                    "bytes_copied_in": self.bytes_copied_in,
                    "bytes_copied_out": self.bytes_copied_out}

    # ---- Uses of the twins -----------------------------------------------------------------------

    def lend(self, place: DevicePlace) -> Any:
        """The twin, whose bytes are the parameter's from now on: what is on the device is
        released, or, if others have its memory, brought up to date by refresh().

        :raises SpillwayError: what was changed on the device cannot be moved
        """
        with self._lock:
            if place.noticed() == MOVING:
                self._recover(place)
            if place.state == IN and not place.stale:
                place.failed = False
                if self._is_changed(place):
                    self._copy_out(place)
                if not place.is_alone() or not self._give_back(place):
                    place.stale = True
            for arrived, _, _, twin in self._flights:  # what is copied is what is there now
                if twin is place.on_drives.storage:
                    self._table.finish(arrived)
        return place.twin

    def refresh(self) -> None:
        """Other holders of the memory of a place find in it what its twin was changed to."""
        with self._lock:
            for place in list(self._in):
                if place.stale and place.noticed() == IN:
                    self._refresh(place)

    def _refresh(self, place: DevicePlace) -> None:
        use = self.drives.hold([place.on_drives])
        try:
            if place.escaped:
                place.users.update(self._seen)
            self._copy_in(place, use)
        except BaseException:
            self._table.finish(self._table.record(self._side))
            raise
        # Others do not know of the copy's event.
        self._table.wait(place.stream, place.arrived)
        place.users[place.stream.stream_id] = place.stream
        place.escaped = True

    def flush(self) -> None:
        """All twins have the parameters' bytes.

        :raises SpillwayError: one cannot be had; nothing is lost
        """
        with self._lock:
            for place in list(self._in):
                if place.noticed() == IN and not place.stale and self._is_changed(place):
                    self._copy_out(place)

    def begin_step(self) -> None:
        """Expect the uses since the last call again, in the same order."""
        with self._lock:
            self._order.begin_step()
            self._said_over = False
            for place in list(self._in):
                place.pinned = place.failed = False
            if not self._table.capturing():
                self.refresh()
                self._room(0)
                self._prefetch(self._stream())

    # ---- The end ---------------------------------------------------------------------------------

    def to_device(self) -> None:
        """Make all places ordinary parameters on the device again.

        :raises SpillwayError: one cannot be read; those before it are ordinary again
        """
        with self._lock:
            self._order.forget()
            self.limit_bytes = sum(place.length for place in self._places)
            for place in list(self._places):
                param = self._places[place]()
                if param is not None:
                    self.hold([place])
                    self._order_streams(place)
                    part(param, place)
                self._drop(place)
            self.close()

    def close(self) -> None:
        """The store closes: no copy runs any more from or to the twins."""
        with self._lock:
            self.closed = True
            self._order.forget()
            while self._flights:
                self._land(wait=True)


def _as_plain(param: Any) -> Any:
    """For why_not(), which tells ordinary parameters."""
    return nn.Parameter(param.detach(), requires_grad=False)


class Values(Sequence[Any]):
    """Where an optimizer of the host finds the values of parameters: in the parameters, or in the
    twins of those on a device. ``host_values``: in what is here for the time being, by number."""

    def __init__(self, params: Sequence[Any]) -> None:
        self._params = params
        self.host_values: Dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._params)

    def __getitem__(self, index: Any) -> Any:
        if index in self.host_values:
            return self.host_values[index]
        param = self._params[index]
        place = getattr(param, "_spillway_place", None)
        return place.owner.lend(place) if isinstance(place, DevicePlace) else param

    def stays_on_device(self, index: int) -> bool:
        """Whether a parameter's values are on a device alone."""
        param = self._params[index]
        return (param.device.type != "cpu" and not is_on_device(param)
                and not hasattr(param, "_local_tensor"))

    def refresh(self) -> None:
        """After they were changed."""
        for window in {param._spillway_place.owner for param in self._params
                       if is_on_device(param)}:
            window.refresh()


def is_on_device(param: Any) -> bool:
    """Whether it is a parameter on drives whose memory is a device's."""
    return isinstance(getattr(param, "_spillway_place", None), DevicePlace)
