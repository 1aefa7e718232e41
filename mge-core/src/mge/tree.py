"""Trees: nested tuples, lists and dicts, taken apart into leaves and put together again.

In: arguments and results of traced functions. Out: flat lists and a form that hashes.
After ``tensor``; before ``grad``.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Form(NamedTuple):
    """The shape of a tree without its leaves.

    Attributes
    ----------
    kind : type or None
        The container; None for a leaf.
    keys : tuple
        Keys of a dict, in order.
    children : tuple of Form
    """

    kind: Any
    keys: tuple = ()
    children: tuple = ()


LEAF_FORM = Form(None)


def flatten(tree: Any) -> tuple[list[Any], Form]:
    """Return the leaves of nested tuples, lists, dicts and named tuples, and the form around them."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Form:
    if isinstance(tree, dict):
        return Form(type(tree), tuple(tree), tuple(_flatten(v, leaves) for v in tree.values()))
    if isinstance(tree, (tuple, list)):
        return Form(type(tree), (), tuple(_flatten(v, leaves) for v in tree))
    leaves.append(tree)
    return LEAF_FORM


def unflatten(form: Form, leaves: list[Any]) -> Any:
    """Put leaves back into a form."""
    return _unflatten(form, iter(leaves))


def _unflatten(form: Form, leaves: Any) -> Any:
    if form.kind is None:
        return next(leaves)
    children = [_unflatten(child, leaves) for child in form.children]
    if issubclass(form.kind, dict):
        return form.kind(zip(form.keys, children))
    if hasattr(form.kind, "_fields"):
        return form.kind(*children)
    return form.kind(children)
