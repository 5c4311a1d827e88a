"""Where the ranks of a run tell each other what they do, in torchrun's store: it answers also while a rank hangs in an
exchange. By a connection of its own, so that nobody's waiting holds it up."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.distributed.distributed_c10d import Store


class StoreBoard:
    """One rank's place on the board."""

    def __init__(self, store: Store, rank: int, world: int, name: Callable[[int], str]) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._rank = rank
        self._others = [other for other in range(world) if other != rank]
        self._name, self._world = name, world

    def tell(self, words: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the store has gone with the first machine; the run ends by its own error
            self._store.set(f"doing/{self._rank}", json.dumps(words))

    def heard(self) -> dict[str, dict[str, Any] | None]:
        found: dict[str, dict[str, Any] | None] = {}
        with suppress(RuntimeError):  # as above
            for other in self._others:
                place = f"doing/{other}"
                told = json.loads(self._store.get(place)) if self._store.check([place]) else None
                found[f"{self._name(other)} of {self._world}"] = told
        return found
