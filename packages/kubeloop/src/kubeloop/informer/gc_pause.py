"""Keeping Python's cyclic garbage collector away from big stores.

Decoding thousands of objects makes the collector run again and again over objects that are all
alive: for dictionaries this is most of the time a list takes, and each later full collection stops
the program for as long as it takes to visit the store. Two measures, both of them global, and so
counted over all informers of the process and always taken back:

- while a list is being loaded, from the first byte of the answer on, the collector is paused, for a
  limited time;
- after the first load of an informer, everything alive is moved out of the collector's sight
  (`gc.freeze`), and back into it (`gc.unfreeze`) when the last informer of the process is released.

The collector is *not* turned off: garbage that is made after the freeze is found as before. There
is one freeze for each informer, not one for each list or each so many events: every freeze also
hides whatever garbage there is at that moment, and a program that freezes all the time collects
nothing. For the same reason the garbage that exists is collected before the first load, when there
is little.

What stays visible are the objects that come later, over the watch. Structs without `gc` and
`LazyObject`s hold nothing that the collector visits, so collections stay short however many there
are. Dictionaries do not have this property; a big store of them is paused over sooner or later.

How a reflector uses it:

    guard = GcGuard()                      # one for each informer; enabled=False opts out
    with guard.loading() as load:          # around each list, or each initial stream
        ...
        load.begin()                       # once objects arrive; may be repeated
        ...
    guard.release()                        # when the informer stops
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Protocol

_LONGEST_PAUSE = 10.0


class GcModule(Protocol):
    """The part of the `gc` module that is used."""

    def isenabled(self) -> bool:
        """Whether automatic collection is on."""

    def enable(self) -> None:
        """Turn automatic collection on."""

    def disable(self) -> None:
        """Turn automatic collection off."""

    def collect(self) -> int:
        """Run a full collection."""

    def freeze(self) -> None:
        """Move all tracked objects out of the collector's sight."""

    def unfreeze(self) -> None:
        """Move them back."""


class GcPauser:
    """Counts who needs the process's collector paused or its store frozen. Safe across threads.

    A program that turned the collector off itself finds it off again afterwards.
    """

    def __init__(self, control: GcModule) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._loads = 0
        self._was_enabled = False
        self._freezes = 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the collector; it goes on when the last of those who paused it is done."""
        self._pause()
        try:
            yield
        finally:
            self._go_on()

    def freeze(self) -> None:
        """Hide what is alive now; to be taken back by one `thaw`."""
        with self._lock:
            self._freezes += 1
            self._control.freeze()

    def thaw(self) -> None:
        """Take one freeze back; the last one brings everything back into sight."""
        with self._lock:
            self._freezes -= 1
            if self._freezes == 0:
                self._control.unfreeze()

    def _pause(self) -> None:
        with self._lock:
            self._loads += 1
            if self._loads > 1:
                return
            self._was_enabled = self._control.isenabled()
            if self._was_enabled and not self._freezes:
                self._control.collect()
            self._control.disable()

    def _go_on(self) -> None:
        with self._lock:
            self._loads -= 1
            if self._loads == 0 and self._was_enabled:
                self._control.enable()


# The interpreter has one collector, so there is one of these.
PROCESS_GC = GcPauser(gc)


class GcLoad:
    """The pause of one list: from `begin` to `end`, ten seconds at most.

    The collector runs while a server is connected to, hangs, or refuses, because each attempt leaves
    garbage and a server may refuse indefinitely. One that stalls in the middle of its list gets ten seconds.
    """

    def __init__(self, collector: GcPauser | None) -> None:
        self._collector = collector
        self._pause = contextlib.ExitStack()
        self._overdue: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Pause the collector, if this load has not yet."""
        if self._collector is None:
            return
        self._pause.enter_context(self._collector.paused())
        self._collector = None
        with contextlib.suppress(RuntimeError):  # without a loop nothing can stall
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(_LONGEST_PAUSE, self._pause.close)

    def end(self) -> None:
        """Let the collector go on."""
        if self._overdue is not None:
            self._overdue.cancel()
        self._pause.close()


class GcGuard:
    """One informer's share in the policy. `release` may be repeated, and without a load before."""

    def __init__(self, *, enabled: bool = True, collector: GcPauser = PROCESS_GC) -> None:
        self._enabled = enabled
        self._collector = collector
        self._frozen = False

    def __repr__(self) -> str:
        return f"<GcGuard enabled={self._enabled} frozen={self._frozen}>"

    @contextlib.contextmanager
    def loading(self) -> Iterator[GcLoad]:
        """Bracket one list. Its `begin` pauses the collector; the first complete list is frozen."""
        load = GcLoad(self._collector if self._enabled else None)
        try:
            yield load
            if self._enabled and not self._frozen:
                self._frozen = True
                self._collector.freeze()
        finally:
            load.end()

    def release(self) -> None:
        """Take back this informer's freeze."""
        if self._frozen:
            self._frozen = False
            self._collector.thaw()
