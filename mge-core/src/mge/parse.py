"""Reading the text of a graph: what ``print_graph`` writes.

In: text. Out: ``Graph``, with every shape rule run again and its types compared with the text.
After ``ops/*``; before ``tensor``.

The text may come from anyone: nothing of it is evaluated, and its size and nesting are bounded. A whole number may
also be ``a*n+b``, where ``n`` is the batch size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from . import op as op_module
from .dtype import BY_SHORT
from .errors import FileFormatError, MgeError
from .graph import GET, Graph, Node, Signature, get_signature, make_leaf
from .op import OPS, Op
from .types import Type

MAX_CHARACTERS = 256 << 20
MAX_GRAPHS = 64  # nested in each other
MAX_TUPLES = 8
MAX_INTEGER = 1 << 63
MAX_BYTES = 1 << 62  # of one value

TOKEN = re.compile(
    r"""[ \n]*(?:
    (?P<reference>%\d{1,9})(?!\w)
  | (?P<bytes>0x(?:[0-9a-f]{2})*)(?!\w)
  | (?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf)(?!\w))
  | (?P<integer>-?\d+(?!\w))
  | (?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
  | (?P<string>'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")
  | (?P<sign>[()\[\]{},:=*+])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(
    r"""\\(?:(['"\\])|([nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))""", re.DOTALL
)
_NAMED = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": np.nan}

_T = TypeVar("_T")


def load_namespace(namespace: str) -> str | None:
    """Load the library of the ops ``namespace::...``; return the package known to have it. Set by registry.py."""


def parse_graph(text: str, device: Any = None, *, n: int | None = None) -> Graph:
    """Read a graph from its text.

    Parameters
    ----------
    text : str
        What ``print_graph`` or ``str(graph)`` gives.
    device : Device, optional
        The device of its nodes; by default the default device.
    n : int, optional
        The batch size, for a text in which numbers depend on it.

    Returns
    -------
    Graph
        Equal to the one that was printed.

    Raises
    ------
    FileFormatError
        The text breaks a rule; the error says where, what was found and what the rule is.
    """
    if len(text) > MAX_CHARACTERS:
        raise FileFormatError(
            f"graph text: it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read"
        )
    reader = _Reader(text, device or op_module.default_device(), n)
    graph = reader.graph(MAX_GRAPHS)
    reader.expect("end")
    return graph


class Token(NamedTuple):
    """One word of a text: its kind is the name of the group in ``TOKEN``."""

    kind: str
    text: str
    start: int


class _Reader:
    """Reads one text from its start to its end, one token ahead."""

    def __init__(self, text: str, device: Any, n: int | None) -> None:
        self.text, self.device, self.n = text, device, n
        self.next = self._scan(0)

    # Tokens.

    def _scan(self, position: int) -> Token:
        match = TOKEN.match(self.text, position)
        if match is None:
            start = len(self.text) - len(self.text[position:].lstrip(" \n"))
            is_function = self.text[start : start + 1] == "<"
            rule = (
                "a Python function has no text"
                if is_function
                else "that is no word of a graph's text"
            )
            self.fail(start, f"found {self.text[start : start + 12]!r}", rule)
        kind = match.lastgroup or ""
        self._after = match.end()
        return Token(kind, match[kind], match.start(kind))

    def fail(self, position: int, found: str, rule: str, hint: str | None = None) -> NoReturn:
        """Raise an error that names the line and column."""
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        raise FileFormatError(
            f"graph text, line {line}, column {column}: {found}; {rule}", hint=hint
        )

    def wrong(self, rule: str) -> NoReturn:
        """Raise: the next token is not what the rule says."""
        found = "the text ends" if self.next.kind == "end" else f"found {self.next.text[:40]!r}"
        self.fail(self.next.start, found, rule)

    def take(self) -> Token:
        """Return the next token and go on."""
        token = self.next
        if token.kind != "end":
            self.next = self._scan(self._after)
        return token

    def expect(self, kind: str, text: str | None = None) -> Token:
        """Return the next token, which must be of this kind and text."""
        if self.next.kind != kind or text not in (None, self.next.text):
            self.wrong(
                f"{repr(text) if text else 'the end' if kind == 'end' else f'a {kind}'} must stand here"
            )
        return self.take()

    def has(self, text: str) -> bool:
        """Whether the next token is this sign or name; it is taken then."""
        if self.next.text == text and self.next.kind in ("sign", "name"):
            self.take()
            return True
        return False

    def listed(self, closing: str, item: Callable[[], _T]) -> list[_T]:
        """Return items separated by commas, up to the closing sign; one comma may follow the last."""
        items: list[_T] = []
        while not self.has(closing):
            if items:
                self.expect("sign", ",")
                if self.has(closing):
                    break
            items.append(item())
        return items

    # Numbers and values.

    def integer(self) -> int:
        """Return a whole number, or ``a*n+b`` for this batch size."""
        start = self.next.start
        factor, offset = 0, 0
        if self.next.kind == "integer":
            offset = self._whole(self.take().text, start)
            if not self.has("*"):
                return offset
            factor, offset = offset, 0
        else:
            factor = 1
        if not (self.next.kind == "name" and self.next.text == "n"):
            self.wrong("a whole number, or a*n+b, must stand here")
        self.take()
        if self.has("+") or (self.next.kind == "integer" and self.next.text[0] == "-"):
            offset = self._whole(self.expect("integer").text, start)
        if self.n is None:
            self.fail(start, "found a number that depends on n", "no batch size was given")
        return self._bounded(factor * self.n + offset, start)

    def _whole(self, text: str, start: int) -> int:
        if len(text) > 20:
            self.fail(
                start, f"found a number of {len(text)} digits", "numbers have at most 64 bits"
            )
        return self._bounded(int(text), start)

    def _bounded(self, value: int, start: int) -> int:
        if not -MAX_INTEGER <= value < 2 * MAX_INTEGER:
            self.fail(start, f"found {value}", "numbers have at most 64 bits")
        return value

    def value(self, graphs: int, tuples: int = MAX_TUPLES) -> Any:
        """Return an attribute's value."""
        kind, text, start = self.next
        if kind == "integer" or (kind == "name" and text == "n"):
            return self.integer()
        if kind == "name":
            if text == "graph":
                return self.graph(graphs - 1)
            self.take()
            if text in _NAMED:
                return _NAMED[text]
            if text in BY_SHORT:
                return BY_SHORT[text]
            kinds = "a number, text, dtype, 0x bytes, tuple, graph, True, False or None"
            self.fail(start, f"found {text!r}", f"a value is {kinds}")
        if kind == "float":
            return float(self.take().text)
        if kind == "bytes":
            return bytes.fromhex(self.take().text[2:])
        if kind == "string":
            self.take()
            return _ESCAPE.sub(lambda match: self._unescaped(match, start), text[1:-1])
        if self.has("("):
            if not tuples:
                self.fail(start, "found a tuple", f"tuples are nested at most {MAX_TUPLES} deep")
            return tuple(self.listed(")", lambda: self.value(graphs, tuples - 1)))
        return self.wrong("a value must stand here")

    def _unescaped(self, match: re.Match[str], start: int) -> str:
        quoted, control, two, four, eight, other = match.groups()
        code = int(two or four or eight or "0", 16)
        if other is not None or code > 0x10FFFF:
            self.fail(
                start,
                f"found the escape {match[0]!r}",
                r"a text has \\ \' \" \n \r \t \x00 \u0000 \U00000000",
            )
        return quoted or ({"n": "\n", "r": "\r", "t": "\t"}[control] if control else chr(code))

    def type(self) -> Type:
        """Return a type, ``f32[4, 8]``."""
        name = self.expect("name")
        if name.text not in BY_SHORT:
            self.fail(
                name.start,
                f"found {name.text!r}",
                f"a type begins with one of {', '.join(BY_SHORT)}",
            )
        self.expect("sign", "[")
        shape = tuple(self.listed("]", self.integer))
        dtype = BY_SHORT[name.text]
        if (
            any(size < 0 for size in shape)
            or math.prod(shape) * dtype.itemsize > MAX_BYTES
            or len(shape) > 64
        ):
            rule = f"sizes are at least 0 and a value has at most {MAX_BYTES} bytes"
            self.fail(name.start, f"found the shape {shape}", rule)
        return Type(shape, dtype)

    def types(self) -> tuple[Type, ...]:
        """Return one type, or several in brackets."""
        return tuple(self.listed(")", self.type)) if self.has("(") else (self.type(),)

    # Graphs.

    def graph(self, graphs: int) -> Graph:
        """Return a graph; ``graphs`` says how deep others may be nested in it."""
        head = self.expect("name", "graph")
        if not graphs:
            self.fail(head.start, "found a graph", f"graphs are nested at most {MAX_GRAPHS} deep")
        names: dict[str, Node] = {}
        self.expect("sign", "(")
        inputs = tuple(self.listed(")", lambda: self._input(names)))
        self.expect("sign", "{")
        nodes = []
        while not self.has("return"):
            nodes.append(self._node(names, graphs))
        outputs: list[Node] = []
        while not self.has("}"):
            if outputs:
                self.expect("sign", ",")
            outputs.append(self._edge(names))
        return Graph(inputs, tuple(nodes), tuple(outputs))

    def _input(self, names: dict[str, Node]) -> Node:
        name = self._new_name(names)
        self.expect("sign", ":")
        type_ = self.type()
        node = names[name] = make_leaf(type_, self.device, self.has("slow"))
        return node

    def _new_name(self, names: dict[str, Node]) -> str:
        token = self.expect("reference")
        if token.text in names:
            self.fail(token.start, f"found {token.text} again", "each value is defined once")
        return token.text

    def _reference(self, names: dict[str, Node]) -> Node:
        token = self.expect("reference")
        node = names.get(token.text)
        if node is None:
            self.fail(
                token.start, f"found {token.text}", "a value is defined above the line that uses it"
            )
        return node

    def _edge(self, names: dict[str, Node]) -> Node:
        start = self.next.start
        node = self._reference(names)
        if not node.sig.single:
            self.fail(
                start,
                f"found a value with {len(node.sig.types)} outputs",
                "one of them is read through get",
            )
        return node

    def _node(self, names: dict[str, Node], graphs: int) -> Node:
        name = self._new_name(names)
        self.expect("sign", ":")
        types = self.types()
        self.expect("sign", "=")
        op = self.expect("name")
        is_get = op.text == GET.name
        self.expect("sign", "(")
        inputs = self.listed(")", lambda: self._reference(names) if is_get else self._edge(names))
        attrs = dict(self.listed("}", lambda: self._attribute(graphs))) if self.has("{") else {}
        sig = self._get(op, inputs, attrs) if is_get else self._signature(op, inputs, attrs)
        if types != sig.types:
            self.fail(
                op.start,
                f"the text gives {op.text} the type {', '.join(map(repr, types))}",
                f"its rule gives {', '.join(map(repr, sig.types))}",
            )
        node = names[name] = Node(sig, tuple(inputs), sig.type)
        return node

    def _attribute(self, graphs: int) -> tuple[str, Any]:
        name = self.expect("name").text
        self.expect("sign", "=")
        return name, self.value(graphs)

    def _get(self, op: Token, inputs: list[Node], attrs: dict[str, Any]) -> Signature:
        index: Any = attrs.get("index")
        is_right = len(inputs) == 1 and set(attrs) == {"index"} and type(index) is int
        if not is_right or inputs[0].sig.single or not 0 <= index < len(inputs[0].sig.types):
            rule = "it reads output {index=i} of one value with several outputs"
            self.fail(op.start, f"found get with {attrs}", rule)
        return get_signature(inputs[0].sig, index)

    def _signature(self, token: Token, inputs: list[Node], attrs: dict[str, Any]) -> Signature:
        """Run the shape rule again."""
        op = self._op(token)
        count, least = len(op.input_names), len(op.input_names) - op.optional_inputs
        if not op.variadic and not least <= len(inputs) <= count:
            wanted = f"{least} to {count}" if least < count else str(count)
            self.fail(token.start, f"found {len(inputs)} inputs of {op.name}", f"it takes {wanted}")
        unknown = sorted(set(attrs) - set(op.attr_names))
        if unknown:
            known = ", ".join(op.attr_names) or "none"
            self.fail(token.start, f"found the attribute {unknown[0]!r}", f"{op.name} has {known}")
        types = tuple(i.type for i in inputs)
        try:
            sig = op.signature(types, op.normal_attrs(attrs), self.device)
        except Exception as error:  # of a rule that was given what no call would give it
            first = (
                str(error).splitlines()[0]
                if isinstance(error, MgeError)
                else f"{type(error).__name__}: {error}"
            )
            self.fail(
                token.start, f"the rule of {op.name} refuses {', '.join(map(repr, types))}", first
            )
        if sig.input_types != types:
            self.fail(
                token.start, f"{op.name} is given {types}", f"its inputs must be {sig.input_types}"
            )
        return sig

    def _op(self, token: Token) -> Op:
        name = token.text
        namespace = name.partition("::")[0] if "::" in name else None
        package: str | None = "--upgrade mge-core"
        if name not in OPS and namespace:
            package = load_namespace(namespace)
        if name not in OPS:
            hint = f"pip install {package}" if package else None
            offered = (
                f"no installed plugin offers {namespace!r}"
                if namespace
                else "this mge has no such op"
            )
            self.fail(token.start, f"found the op {name!r}", offered, hint)
        return OPS[name]
