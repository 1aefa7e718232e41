"""Modules one after another.

In: modules, or one ordered dict of them. Out: ``Sequential``.
After ``module``; before ``__init__``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ArgumentError
from .module import Module


class Sequential(Module):
    """Call modules one after another, each with what the one before returned.

    Parameters
    ----------
    *args : Module
        The modules, or one dict of name to module. Without names they are called ``"0"``, ``"1"``, ...
    name : str, optional

    Notes
    -----
    Indexes, slices, names, ``len``, iteration, ``append`` and ``insert`` work.

    Examples
    --------
    >>> net = Sequential(Linear(3, 4), ReLU(), Linear(4, 2))
    >>> len(net), net(ones((1, 3))).shape
    (3, (1, 2))
    """

    def __init__(self, *args: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.layer_keys: list[str] = []
        given = (
            args[0]
            if len(args) == 1 and isinstance(args[0], Mapping)
            else {str(i): m for i, m in enumerate(args)}
        )
        for key, module in given.items():
            self._put(str(key), module)
            self.layer_keys.append(str(key))

    def _put(self, key: str, module: Any) -> None:
        if not isinstance(module, Module):
            raise ArgumentError(
                f"Sequential: {key!r} is a {type(module).__name__}; it must be a Module"
            )
        if key not in self.layer_keys and hasattr(self, key):
            raise ArgumentError(
                f"Sequential: the name {key!r} is taken by an attribute of Sequential"
            )
        setattr(self, key, module)

    def forward(self, inp: Any) -> Any:
        for key in self.layer_keys:
            inp = self.__dict__[key](inp)
        return inp

    @property
    def layer_values(self) -> list[Module]:
        """The modules, in order."""
        return [self.__dict__[key] for key in self.layer_keys]

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        self.insert(len(self.layer_keys), module)

    def insert(self, index: int, module: Module) -> None:
        """Add a module before the one at ``index``; it gets a name that is free."""
        number = len(self.layer_keys)
        while str(number) in self.layer_keys:
            number += 1
        self._put(str(number), module)
        keys = list(self.layer_keys)
        keys.insert(index, str(number))
        self.layer_keys = keys

    def _key(self, index: Any) -> str:
        if isinstance(index, str) and index in self.layer_keys:
            return index
        try:
            return self.layer_keys[index]
        except (IndexError, TypeError):
            raise ArgumentError(
                f"Sequential: {index!r} was asked for; there are {len(self.layer_keys)} modules: "
                f"{', '.join(self.layer_keys)}"
            ) from None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Sequential({key: self.__dict__[key] for key in self.layer_keys[index]})
        return self.__dict__[self._key(index)]

    def __setitem__(self, index: Any, module: Module) -> None:
        self._put(self._key(index), module)

    def __delitem__(self, index: Any) -> None:
        chosen = self.layer_keys[index] if isinstance(index, slice) else [self._key(index)]
        for key in chosen:
            delattr(self, key)
        self.layer_keys = [key for key in self.layer_keys if key not in chosen]

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layer_values)

    def __bool__(self) -> bool:
        return True
