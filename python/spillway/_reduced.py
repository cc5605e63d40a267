# SPDX-License-Identifier: MIT
# spillway/_reduced.py - gradients that DistributedDataParallel has reduced, while others come still
"""PyTorch's hook of a parameter comes before DistributedDataParallel has summed its gradient over
the processes. A communication hook has that sum, by buckets."""
from __future__ import annotations

import collections
from typing import Any, Callable, Deque, List, Mapping, Tuple

import torch
from torch import Tensor, distributed
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

_Bucket = Tuple[List[Tensor], List[Tensor], Any]  # parameters, their sums, and when these are there


class Reduced:
    """Of a model's buckets.

    :raises ValueError: gradients that nobody has computed could not be told from zeros
    :raises RuntimeError: the model has another communication hook
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        if model.find_unused_parameters or model.static_graph:
            raise ValueError(
                "in_backward with find_unused_parameters=True or static_graph=True: a bucket has "
                "zeros for what no process has used, and the optimizer would step it with them. "
                "Leave these out of DistributedDataParallel, or in_backward out of the optimizer")
        if model.mixed_precision is not None:
            raise ValueError("in_backward with mixed_precision of DistributedDataParallel: its "
                             "buckets are not of the parameters' type. Leave one of them out")
        self._group = model.process_group
        self._params = {id(param): param for param in model._module_parameters}
        self._under_way: Deque[_Bucket] = collections.deque()
        self._announced = False
        self.unfollow()
        model.register_comm_hook(self, _reduce)
        # Else it makes all gradients anew at the end of the pass.
        model.reducer._set_optimizer_in_backward()

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
        """Begin with this one, and use those that are done."""
        if not self._announced:
            self._announced = True
            Variable._execution_engine.queue_callback(self._finish)
        buffer = bucket.buffer()
        # The same bits as without a hook, which multiplies, too.
        buffer.mul_(1.0 / self._group.size())
        future = distributed.all_reduce(buffer, group=self._group, async_op=True).get_future()
        while self._under_way and self._under_way[0][2].done():
            self._use(self._under_way.popleft())
        self._under_way.append((bucket.parameters(), bucket.gradients(), future))
        return future.then(lambda reduced: reduced.value()[0])

    def _use(self, bucket: _Bucket) -> None:
        params, sums, future = bucket
        future.wait()
        for param, total in zip(params, sums):
            number = self._numbers.get(id(param))
            if number is None:
                assert param.grad is not None
                param.grad.copy_(total)  # another optimizer's
            else:
                param.grad = total
                self._arrived(number)

    def _finish(self) -> None:
        """All buckets are under way. What is queued here comes after DistributedDataParallel's own
        end of the pass, which looks at gradients."""
        self._announced = False
        while self._under_way:
            self._use(self._under_way.popleft())
        Variable._execution_engine.queue_callback(self._ended)


# PyTorch reads annotations of such a function, and wants none or types themselves.
def _reduce(reduced, bucket):  # type: ignore[no-untyped-def]
    return reduced.reduce(bucket)
