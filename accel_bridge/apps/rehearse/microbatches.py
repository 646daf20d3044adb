"""Microbatches are alike: a step runs as many as its schedule needs, and few of them in full.

A schedule is a fill, a steady part and a drain. The steady part repeats itself: it is run until
that is seen, and the rest is counted. Of the microbatches that are run, the first, two that are the
same and the last do their operations; the others leave what those two left of memory, collectives
and arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.variable import Variable
from torch.utils._pytree import tree_leaves, tree_map_only

from accel_bridge.apps.rehearse.mode import Rehearsal
from accel_bridge.apps.rehearse.passes import UNKNOWN, Copy, Graph, Key, Like, Own, Pass
from accel_bridge.apps.rehearse.work import Rows, less


def enough(microbatches: int, stages: int, chunks: int, group: int) -> int:
    """How many microbatches are run: the same number on every rank, so that their sends meet.

    :param group: microbatches after which an interleaved schedule repeats itself.
    """
    fill = stages - 1 if chunks == 1 else 2 * stages - 1 + (chunks - 1) * group
    least = -(-fill // chunks) + 4 * group
    return microbatches - max(0, microbatches - least) // group * group


class _Chunk:
    """What is known of a model chunk's passes: the last of each direction in full, the last of
    which two were the same, and whether this step has had that one.
    """

    def __init__(self) -> None:
        self.last: dict[str, Pass] = {}
        self.twice: dict[str, Pass] = {}
        self.held: dict[Key, Any] = {}
        #: What the framework's forward step returns beside a tensor, without tensors.
        self.loss: Any = None
        self.begin()

    def begin(self) -> None:
        """A schedule begins."""
        self.number, self.known = 0, {"forward": False, "backward": False}

    def ended(self, whose: str, one: Pass) -> None:
        """A pass in full."""
        same = one.same(self.last.get(whose)) or one.same(self.twice.get(whose))
        self.known[whose], self.last[whose] = same, one
        if same:
            self.twice[whose] = one


class Microbatches:
    """Of a rank.

    :param session: whose it is (:class:`~accel_bridge.apps.rehearse.session.Session`).
    :param how: as in the plan.
    :ivar inputs: what a chunk gets from the stage before, set before each forward pass.
    """

    def __init__(self, session: Any, how: str) -> None:
        self._session, self.how = session, how
        self.run = self._all = self._times = self._number = self._period = 0
        self.inputs: Sequence[torch.Tensor] | None = None
        self._chunks: dict[int, _Chunk] = {}
        self._slots: list[tuple[int, Rows, int]] = []
        self._repeated: tuple[int, int, Rows] = (0, 0, {})
        self._left: list[int] = []
        self._open: tuple[_Chunk, Pass, Sequence[torch.Tensor]] | None = None

    @property
    def _mode(self) -> Rehearsal:
        mode: Rehearsal = self._session.mode
        return mode

    # --- the schedule ---------------------------------------------------------------------------

    def begin(self, microbatches: int, stages: int, chunks: int, group: int) -> int:
        """A schedule begins: how many microbatches it shall run."""
        run, plan = microbatches, self._session.plan
        if plan.why:
            which = "all microbatches are run" if self.how == "all" else "each is run in full"
            self._session.note(f"{which}, for {plan.why}")
        if self.how != "all":
            run = enough(microbatches, stages, chunks, group)
        self._all, self.run, self._times = microbatches, run, (microbatches - run) // group
        self._period, self._number = group * chunks, run * chunks
        self._slots.clear()
        for one in self._chunks.values():
            one.begin()
        return run

    def _slot(self) -> None:
        """A forward pass begins. The last period must have begun as the two before it did."""
        mode = self._mode
        calls, ledger = mode.collectives.calls, mode.ledger
        self._slots.append((len(calls), mode.work.rows(), ledger.now))
        if not self._times or len(self._slots) != self._number - self._period + 1:
            return
        a, b, c = (self._slots[-1 - n * self._period] for n in (2, 1, 0))
        left, right = ([one.row() for one in calls[x[0] : y[0]]] for x, y in ((a, b), (b, c)))
        work, grown = less(c[1], b[1]), c[2] - b[2]
        if left != right or work != less(b[1], a[1]) or not 0 <= grown == b[2] - a[2]:
            self._session.again("all", "they differ in collectives, arithmetic or what they leave")
        self._repeated = b[0], c[0], work
        if grown:  # the loss of each is kept
            mark = mode.step, "forward", "", "loss"
            for _ in range(self._times):
                self._left.append(ledger.allocate(grown, mark, "activations"))

    def end(self, losses: Any) -> None:
        """It has ended: count the microbatches that it did not run.

        :param losses: of each microbatch, where the schedule has them.
        """
        if self._times:
            if len(self._slots) != self._number:
                self._session.again("all", "their forward passes do not follow one another")
            mode, (begin, end, work) = self._mode, self._repeated
            for call in mode.collectives.calls[begin:end]:
                call.times += self._times
            mode.work.again(work, self._times)
            for number in self._left:
                mode.ledger.release(number)
            self._left.clear()
            while isinstance(losses, list) and self.run <= len(losses) < self._all:
                losses.append(tree_map_only(torch.Tensor, self._made, losses[0]))

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        made = Like(tensor).make()
        self._mode.ledger.label(made.untyped_storage(), "activations")
        return made

    # --- passes -----------------------------------------------------------------------------------

    def forward(self, step: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """The framework's forward step of a microbatch, or a copy of one.

        :param given: its data, and the model chunk.
        """
        self._slot()
        inputs, self.inputs = self.inputs, None
        chunk = self._chunks.setdefault(id(given[1]), _Chunk())
        number, chunk.number = chunk.number, chunk.number + 1
        if self.how != "few" or inputs is None or len(given) + len(more) > 2:
            return step(*given, **more)
        if chunk.known["forward"] and number + 1 < self.run:
            return self._copied(chunk, inputs, given[1])
        one = Pass(self._mode)
        answer = output, loss = step(*given, **more)
        one.end({}, chunk.last.values(), chunk.held)
        if isinstance(output, torch.Tensor) and output.grad_fn is not None:
            one.keep(output)
            chunk.loss = _with(loss, torch.Tensor, one.keep)
            chunk.ended("forward", one)
            output.grad_fn.register_prehook(lambda grads: self._begin(chunk, one, inputs, grads))
        return answer

    def _copied(self, chunk: _Chunk, inputs: Sequence[torch.Tensor], model: Any) -> Any:
        made: dict[int, torch.Tensor] = {}
        known = chunk.last["forward"]
        known.let_go(model)
        copy = Copy(known, functools.partial(self._backward, chunk, known), inputs, chunk.held)
        output = Graph.apply(copy, made, torch.empty(0, requires_grad=True))
        return output, _with(chunk.loss, Own, made.__getitem__)

    def _backward(self, chunk: _Chunk, forward: Pass) -> Pass:
        """The backward pass to copy."""
        if not chunk.known["backward"] or forward.leaves():
            self._session.again("whole", "of two backward passes each releases something else")
        return chunk.last["backward"]

    def _begin(self, chunk: _Chunk, forward: Pass, inputs: Any, gradients: Any) -> None:
        """The backward pass of a microbatch begins that is run in full."""
        one, names = Pass(self._mode), forward.names()
        for place, tensor in enumerate((gradients[0], *inputs)):
            names[self._mode.ledger.number(tensor.untyped_storage())] = "older", place
        queue = Variable._execution_engine.queue_callback
        # After all that others have queued.
        queue(lambda: queue(lambda: one.end(names, chunk.last.values(), chunk.held)))
        self._open = chunk, one, inputs

    def backward_ended(self, gradients: Any) -> None:
        """:param gradients: those that the stage before gets."""
        if self._open is not None:
            chunk, one, inputs = self._open
            self._open = None
            for gradient in tree_leaves(gradients):
                if gradient is not None:
                    one.keep(gradient)
            if len(one.kept) != len(inputs):
                one.events.append(UNKNOWN)
            chunk.ended("backward", one)


def _with(loss: Any, kind: type, other: Callable[[Any], Any]) -> Any:
    """A function with tensors that are bound to it; what else has tensors is not copied."""
    if not isinstance(loss, functools.partial):
        return loss
    args, keywords = tree_map_only(kind, other, (loss.args, loss.keywords))
    return functools.partial(loss.func, *args, **keywords)
