"""`Mix`: the records of several sources as one stream, each source by its weight.

Who gives next is decided by `order.mixing`, not drawn. The state is the states of the sources and what each has given.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from shuflr.errors import InputError, TokenError
from shuflr.order.mixing import shares, turns

Weights = Mapping[str, float]
STOPS = ("first", "all", "none")
_VERSION = 1


class Mix:
    """Records of `sources`, of which each gives its weight's share: after n records n·share, to less than 1.

    sources: iterables of records by name, such as Datasets; each is opened when its first turn comes, and one of weight
    0 never. weights: a number from 0 on for each name, in any unit; or, to change them on the way, a list of (record
    number from which they hold, weights), the first from 0.
    stop: "first" ends with the first source that is exhausted; "all" goes on with the others until none is left; "none"
    begins an exhausted source again, for ever. Raises InputError for what makes no sense, such as an empty source under
    "none".

    A stretch of records under the same weights and the same sources keeps the shares; a change of
    either begins another."""

    def __init__(
        self,
        sources: "Mapping[str, Any]",
        weights: "Union[Weights, Sequence[tuple[int, Weights]]]",
        *,
        stop: str = "first",
    ) -> None:
        if stop not in STOPS:
            raise InputError(f"stop is one of {', '.join(STOPS)}, not {stop!r}")
        self._sources = dict(sources)
        stages = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
        self._starts = [start for start, _ in stages]
        if not stages or self._starts[0] != 0 or self._starts != sorted(set(self._starts)):
            raise InputError("a schedule of weights begins at record 0, and its record numbers rise")
        self._weights: list[dict[str, float]] = []
        for _, given in stages:
            unknown = sorted(set(given) ^ set(self._sources))
            if unknown:
                raise InputError(f"weights and sources name the same; {', '.join(unknown)} is in one of them only")
            shares(given)
            self._weights.append(dict(given))
        self._stop = stop
        self._begin()

    def _begin(self) -> None:
        self._records = 0
        self._given: dict[str, int] = {}  # in this stretch
        self._exhausted: set[str] = set()
        self._stage = 0
        self._loaded = False
        self._opened: dict[str, Iterator[Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        """From the beginning or, once, from the state that was loaded."""
        if not self._loaded:
            self._begin()
        self._loaded = False
        self._opened = {}
        return self._run(self._opened)

    def _run(self, opened: "dict[str, Iterator[Any]]") -> Iterator[Any]:
        try:
            while self._live():
                yield from self._stretch(opened)
                if self._stop == "first" and self._exhausted:
                    return
        finally:
            for iterator in opened.values():
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()

    def _live(self) -> "dict[str, int]":
        """The shares of the sources that give now; none when all that have a weight are exhausted."""
        weights = {name: w for name, w in self._weights[self._stage].items() if name not in self._exhausted}
        return shares(weights) if any(weights.values()) else {}

    def _stretch(self, opened: "dict[str, Iterator[Any]]") -> Iterator[Any]:
        """Records until the weights change or a source leaves."""
        following = self._starts[self._stage + 1] if self._stage + 1 < len(self._starts) else None
        for name in turns(self._live(), self._given):
            if self._records == following:
                self._stage += 1
                self._given = {}
                return
            try:
                record = self._next(name, opened)
            except StopIteration:
                self._exhausted.add(name)
                self._given = {}
                return
            self._records += 1
            self._given[name] = self._given.get(name, 0) + 1
            yield record

    def _next(self, name: str, opened: "dict[str, Iterator[Any]]") -> Any:
        if name not in opened:
            opened[name] = iter(self._sources[name])
        try:
            return next(opened[name])
        except StopIteration:
            if self._stop != "none":
                raise
        opened[name] = iter(self._sources[name])
        try:
            return next(opened[name])
        except StopIteration:
            raise InputError(f"the source {name!r} is empty, so it cannot be begun again") from None

    def set_epoch(self, epoch: int) -> None:
        """The sources' epoch, for those that have one."""
        for source in self._sources.values():
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)

    def state_dict(self) -> "dict[str, Any]":
        """How far the last iterator got: what was received of each source. Sources need a `state_dict` of their own."""
        return {
            "version": _VERSION,
            "records": self._records,
            "given": dict(self._given),
            "exhausted": sorted(self._exhausted),
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: "Mapping[str, Any]") -> None:
        """The next iterator, and only that one, goes on from a state. Raises TokenError for one of other sources."""
        if state.get("version") != _VERSION or set(state.get("sources", ())) != set(self._sources):
            raise TokenError("this is not the state of a mix of these sources")
        self._begin()
        self._records = state["records"]
        self._given = dict(state["given"])
        self._exhausted = set(state["exhausted"])
        # At the record where weights change the old ones have not been left yet.
        self._stage = max(bisect_right(self._starts, self._records - 1) - 1, 0)
        for name, source in self._sources.items():
            source.load_state_dict(state["sources"][name])
        self._loaded = True
