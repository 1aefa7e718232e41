"""The command line: finds the command, runs it, and makes one clear message of an error.

In: words. Out: an exit status: 0 well, 1 a check or the work failed, 2 the command cannot be used like this.
After the commands; before nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mge

from ..debug import VARIABLES, debug, parse
from ..errors import ArgumentError, DeviceError, FileFormatError, MgeError, PluginError
from ..registry import call_hooks
from ..threads import limit_threads
from . import compile as compile_
from . import demo, doctor, environment, explain, infer, memory, new_backend, plugins, tune

# What a user mends by another command line.
USAGE = (
    ArgumentError,
    DeviceError,
    FileFormatError,
    PluginError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Command(NamedTuple):
    """One command: its line in the help, its options, and what it does."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS: dict[str, Command] = {
    "compile": Command(
        "make a plan file for C++ of a model file", compile_.add_arguments, compile_.run
    ),
    "demo": Command("train a small network and check it", demo.add_arguments, demo.run),
    "doctor": Command("look for faults of this installation", doctor.add_arguments, doctor.run),
    "env": Command(
        "print versions, devices and settings", environment.add_arguments, environment.run
    ),
    "explain": Command("say how a model would run", explain.add_arguments, explain.run),
    "memory": Command(
        "print peak against time under memory strategies", memory.add_arguments, memory.run
    ),
    "new-backend": Command(
        "write a plugin for a device", new_backend.add_arguments, new_backend.run
    ),
    "plugins": Command("say which plugins work, and why not", plugins.add_arguments, plugins.run),
    "run": Command("run a model file over an array", infer.add_arguments, infer.run),
    "tune": Command("choose a model's algorithms by their times", tune.add_arguments, tune.run),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    words : sequence of str, optional
        By default those that the program was started with.

    Returns
    -------
    int
        The exit status: 0 well, 1 a check or the work failed, 2 wrong usage.
    """
    try:
        arguments = _parser(sys.argv[1:] if words is None else words).parse_args(words)
        settings = dict(arguments.set)
        if settings.get("threads"):
            limit_threads(settings["threads"])
        with debug(**settings):
            status = _run(arguments)
    except (
        SystemExit
    ) as done:  # --help, --version, wrong usage: argparse has written what there is to say
        status = int(done.code or 0)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        status = 130
    except BrokenPipeError:
        status = _pipe_is_broken()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _pipe_is_broken()
    return status


def _pipe_is_broken() -> int:
    """Write to nowhere from here on: the reader of the output has gone, and nobody is left to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _run(arguments: argparse.Namespace) -> int:
    try:
        return arguments.run(arguments)
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug.debug >= 1:
            raise
        print(f"mge {arguments.command}: {_message(error)}", file=sys.stderr)
        return 2 if isinstance(error, USAGE) else 1


def _message(error: Exception) -> str:
    if isinstance(error, MgeError):
        if error.place and (
            error.place.startswith("<frozen") or error.place.startswith(sys.argv[0])
        ):
            error.place = None  # the line that started this program tells nothing
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        named = error.strerror and error.filename is not None
        return f"{error.filename}: {error.strerror}" if named else str(error)
    return f"{type(error).__name__}: {error}\n  try: MGE_DEBUG=1 shows where"


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mge",
        description="mge, a deep learning framework: a small kernel, and plugins for the rest",
        epilog="Exit status: 0 well, 1 a check or the work failed, 2 wrong usage. "
        "The variables MGE_... are in docs/environment.md.",
    )
    parser.add_argument("--version", action="version", version=f"mge {mge.__version__}")
    parser.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="NAME=VALUE",
        help="a setting for this command, as check=1 for MGE_CHECK=1; may be given several times",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        words = f"{command.help[0].upper()}{command.help[1:]}."
        made = commands.add_parser(name, help=command.help, description=words)
        made.set_defaults(run=command.run)
        command.add_arguments(made)
    if not COMMANDS.keys() & set(given):  # perhaps a command of a plugin, or the list of all
        call_hooks("mge_cli", subparsers=commands)
    return parser


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    variable = f"MGE_{name.upper()}"
    if not equals or variable not in VARIABLES:
        known = ", ".join(v.removeprefix("MGE_").lower() for v in VARIABLES)
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with one of {known}")
    try:
        return name.lower(), parse(variable, value)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error).splitlines()[0]) from None
