# SPDX-License-Identifier: MIT
# spillway/_grads/ddp_buckets.py - Reduced: gradients that DistributedDataParallel has reduced
"""This serves the optimizer's options that use gradients during the backward pass. PyTorch's hook
on a parameter runs before DistributedDataParallel has summed its gradient over the processes; a
communication hook receives the sum, bucket by bucket."""
from __future__ import annotations

import collections
import weakref
from typing import Any, Callable, Deque, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, distributed
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from .._optim.ranks import world
from .param_readers import can_count

# The value of such an option: on or off, or the model that reduces the gradients first.
Reducing = Union[bool, DistributedDataParallel]

_Bucket = Tuple[List[Tensor], List[Tensor], Any]  # parameters, sums, and their future


class Reduced:
    """The reduced gradients of a model.

    :param option: name of the optimizer's option, for messages
    :param has_masters: the optimizer has masters of the parameters
    :raises ValueError: gradients that were not computed could not be told from zeros
    :raises RuntimeError: the model has another communication hook
    """

    def __init__(self, model: DistributedDataParallel, option: str, has_masters: bool) -> None:
        if model.find_unused_parameters or model.static_graph:
            raise ValueError(
                f"{option} with find_unused_parameters=True or static_graph=True: a bucket has "
                "zeros for what no process has used, and the optimizer would step it with them. "
                f"Leave these out of DistributedDataParallel, or {option} out of the optimizer")
        if model.mixed_precision is not None:
            raise ValueError(f"{option} with mixed_precision of DistributedDataParallel: its "
                             "buckets are not of the parameters' type. Leave one of them out")
        self._model = weakref.ref(model)
        self._has_masters = has_masters
        self._group = model.process_group
        self._params = {id(param): param for param in model._module_parameters}
        self._under_way: Deque[_Bucket] = collections.deque()
        self._announced = False
        self.unfollow()
        model.register_comm_hook(self, _reduce)
        # Otherwise the reducer recreates all gradients at the end of the backward pass.
        model.reducer._set_optimizer_in_backward()

    @property
    def reduces(self) -> bool:
        """Whether the current backward pass reduces gradients: not inside no_sync()."""
        model = self._model()
        return model is not None and bool(model.require_backward_grad_sync)

    def has(self, param: Tensor) -> bool:
        """Whether this is a parameter whose gradient is reduced."""
        return id(param) in self._params

    def follow(self, numbers: Mapping[int, int], arrived: Callable[[int], None],
               ended: Callable[[], None]) -> None:
        """
        :param numbers: of parameters, by their id()
        :param arrived: called for each of these when its ``grad`` is the sum
        :param ended: called at the end of each backward pass
        """
        self._numbers, self._arrived, self._ended = numbers, arrived, ended

    def unfollow(self) -> None:
        self.follow({}, lambda _: None, lambda: None)

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Start to reduce a bucket, and use the earlier buckets that are complete. Outside of a
        backward pass this is a process in join() that has no more inputs: it has zeros for the
        others, and no gradients of its own.

        :raises RuntimeError: as _check_join()
        """
        self._check_join()
        buffer = bucket.buffer()
        # Multiply, as PyTorch does without a hook: the result has the same bits.
        buffer.mul_(1.0 / self._group.size())
        future = distributed.all_reduce(buffer, group=self._group, async_op=True).get_future()
        if torch._C._current_graph_task_id() != -1:
            self._note(bucket, future)
        return future.then(lambda reduced: reduced.value()[0])

    def _check_join(self) -> None:
        """:raises RuntimeError: what join() does here comes to other numbers than PyTorch's
        """
        model: Any = self._model()
        if not model._join_config.enable:
            return
        if not model._divide_by_initial_world_size:
            raise RuntimeError("join(divide_by_initial_world_size=False) divides gradients by a "
                               "number that a communication hook is not told: leave it out, or "
                               "in_backward= and gradients=")
        if self._has_masters:
            raise RuntimeError("join() gives the parameters of the rank that ends last to all, and "
                               "not its masters, from which the others would go on: leave out "
                               "join(), or masters=")

    def _note(self, bucket: Any, future: Any) -> None:
        if not self._announced:
            self._announced = True
            Variable._execution_engine.queue_callback(self._finish)
        while self._under_way and self._under_way[0][2].done():
            self._use(self._under_way.popleft())
        self._under_way.append((bucket.parameters(), bucket.gradients(), future))

    def _use(self, bucket: _Bucket) -> None:
        params, sums, future = bucket
        future.wait()
        for param, total in zip(params, sums):
            number = self._numbers.get(id(param))
            if number is None:
                assert param.grad is not None
                param.grad.copy_(total)  # the parameter belongs to another optimizer
            else:
                param.grad = total.data  # with a version of its own: those in a bucket share one
                self._arrived(number)

    def _finish(self) -> None:
        """All buckets are in flight: wait for them. The callback queued here runs after
        DistributedDataParallel's own end of the pass, which looks at gradients."""
        self._announced = False
        while self._under_way:
            self._use(self._under_way.popleft())
        Variable._execution_engine.queue_callback(self._ended)


# PyTorch checks the annotations of a communication hook: it allows none, or types but not strings.
def _reduce(reduced, bucket):  # type: ignore[no-untyped-def]
    return reduced.reduce(bucket)


def reduced_of(option: str, value: Reducing, has_masters: bool) -> Optional[Reduced]:
    """The source of reduced gradients; None if autograd's gradients are used as they are.

    :param has_masters: the optimizer has masters of the parameters
    :raises TypeError: the value is neither a bool nor DistributedDataParallel
    :raises ValueError: the model's options do not allow it
    :raises RuntimeError: this PyTorch has no hook after a gradient is accumulated
    """
    if not isinstance(value, (bool, DistributedDataParallel)):
        raise TypeError(f"{option} must be True, False, or the DistributedDataParallel that "
                        f"reduces the gradients, not {type(value).__name__}")
    if value and not (hasattr(Tensor, "register_post_accumulate_grad_hook") and can_count()):
        raise RuntimeError(f"{option}=True needs PyTorch 2.1, this is {torch.__version__}: "
                           "leave it out, the numbers are the same")
    if not isinstance(value, DistributedDataParallel):
        return None
    return Reduced(value, option, has_masters)


def check_reduced(option: str, params: Sequence[Tensor], reduced: Optional[Reduced]) -> None:
    """:raises RuntimeError: gradients are reduced later than they would be used"""
    if reduced is not None:
        if not all(reduced.has(param) for param in params if param.requires_grad):
            raise RuntimeError(f"{option} is a model, and a parameter is none of those whose "
                               "gradients it reduces: it is another model's, or one of "
                               "DistributedDataParallel's delay_all_reduce_named_params")
    elif world()[1] > 1 and not all(hasattr(param, "placements") for param in params):
        raise RuntimeError(f"{option}=True uses gradients before they have been reduced over all "
                           f"processes: give {option}=model, where it is DistributedDataParallel, "
                           "or leave it out. Parameters that fully_shard has sharded are reduced "
                           "first")
