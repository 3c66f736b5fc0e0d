"""What the commands have in common: how they read numbers from the command line, and how they end."""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import Any, NoReturn, TextIO, TypeGuard

from stellaris_jax.config.commands import command, localised
from stellaris_jax.config.schema import LAST_SEED, ConfigError, RunError
from stellaris_jax.config.trust import Trust
from stellaris_jax.registry import author, search_folder
from stellaris_jax.training.sources.watch import at_work

SIGINT, SIGPIPE = 128 + 2, 128 + 13
"""Exit codes of a program that a signal has ended, as shells have them."""
STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
"""Standard streams by their numbers, and how the null device takes their places where they are closed."""
COLLECT_AFTER = (50_000, 20, 100)
"""Objects, and younger collections, after which Python looks for cycles in each of its generations."""


class Parser(argparse.ArgumentParser):
    """An argument parser that shows a docstring as it stands, and tells a mistake in one line."""

    def __init__(self, name: str, description: str | None = None, **options: Any):
        about = localised(description) if description else None
        how = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=command(name), description=about, formatter_class=how, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")

    def parse_mixed(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Arguments of a command line on which settings and paths stand before, between and after options."""
        line = sys.argv[1:] if argv is None else list(argv)
        # argparse forgets `--` where both may be mixed, so that what follows it would be taken for options.
        return self.parse_args(line) if "--" in line else self.parse_intermixed_args(line)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options `--plugin` and `--trust`, by which a user allows what a stored run imports; see `trust_of`."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="NAME",
        help="allow the run to import this plug-in, module or service that its config.yaml names; may be given again",
    )  # fmt: skip
    parser.add_argument("--trust", action="store_true", help="allow all that its config.yaml names: run its code")


def trust_of(arguments: argparse.Namespace) -> Trust:
    """What the command line allows a stored run to import and connect to, from the current folder as well."""
    if arguments.trust and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    search_folder(name for name in arguments.plugin if re.fullmatch(r"[\w.]+", name) and not name.endswith(".py"))
    return bool(arguments.trust) or list(arguments.plugin)


class SubParser(Parser):
    """The parser of a part of a command."""

    def __init__(self, **options: Any):
        argparse.ArgumentParser.__init__(self, **options)


def at_least(low: int) -> Callable[[str], int]:
    """For `add_argument(type=...)`: an integer that is not below `low`."""

    def integer(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or len(text) > 18 or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {low}, not {text!r}")
        return int(text)

    return integer


def seed(text: str) -> int:
    """For `add_argument(type=...)`: a random seed."""
    number = at_least(0)(text)
    if number > LAST_SEED:
        raise argparse.ArgumentTypeError(f"must be at most {LAST_SEED}, not {text}")
    return number


def finite(text: str) -> float:
    """For `add_argument(type=...)`: a number that is neither infinite nor none."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return number


def run(main: Callable[[], None]) -> None:
    """Run a command's `main`, and end as programs do.

    A ConfigError ends it with exit code 2 and one line on stderr, a RunError and an output that cannot be written with
    1 and a line. So does what a plug-in raises, whose author gets the traceback above that line.
    Where the reader of a pipe has gone (`| head`), or at Ctrl-C, it ends without a word, with the shell's exit codes.
    """
    # Imports and JAX's tracing make objects by the million that stay: looking through them as often as Python does by
    # default takes 5 to 10 % of the time to the first training step.
    gc.set_threshold(*COLLECT_AFTER)
    reopen_streams()
    before = at_work()
    try:
        with redirect_stderr(_Errors(sys.stderr)):  # type: ignore[type-var]
            ended(main)
    except SystemExit as stop:
        if at_work() <= before:
            raise
        # A host environment that was given up and comes back while Python ends would abort the process.
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))


def reopen_streams() -> None:
    """Open the standard streams that the shell has closed (`2>&-`), and set those of `sys` to them.

    Otherwise the next file to be opened gets the number of the stream, and warnings of C++ code are written into it.
    Errors are written to the null device. Results cannot be written, which ends a command with a sentence.
    """
    for number, (name, flags) in enumerate(STREAMS.items()):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(opened := os.open(os.devnull, flags), number)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            text = os.fdopen(number, "w" if number else "r", encoding="utf-8", buffering=1, closefd=False)
            setattr(sys, name, text)


def ended(main: Callable[[], None]) -> None:
    """What `run` does, inside of a program: every end it knows is a SystemExit."""
    output = sys.stdout if isinstance(sys.stdout, _Output) else _Output(sys.stdout)
    try:
        with redirect_stdout(output):  # type: ignore[type-var]
            try:
                main()
            except SystemExit as stop:  # after --help, for one
                with suppress(OSError) if _of_a_signal(stop) else nullcontext():
                    output.flush()
                raise
            output.flush()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(SIGINT)
    except (Exception, SystemExit) as error:
        if output.error is None or not isinstance(error, OSError | SystemExit):
            _blame(error)
            raise
        # What is still to be written is forgotten, lest Python complains that it cannot be.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        broken, output.error = output.error, None  # lest a command around this one tells it again
        if isinstance(broken, BrokenPipeError):
            sys.exit(SIGPIPE)
        if _of_a_signal(error):  # such as SIGHUP, with which a terminal goes
            sys.exit(error.code)
        print(f"error: the output cannot be written ({broken.strerror}).", file=sys.stderr)
        sys.exit(1)


def _of_a_signal(error: BaseException) -> TypeGuard[SystemExit]:
    """Whether a program ends with the exit code of a signal."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


def _blame(error: Exception | SystemExit) -> None:
    """End the program with a line about the plug-in that an error has come out of, if there is one."""
    who = author(error)
    if who is None:
        return
    traceback.print_exception(error)
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        what = f"called sys.exit({code}), by which no run may end: a callback that returns true ends it."
    else:
        what = f"failed: {type(error).__name__}: {error}"
    print(f"error: {ConfigError(f'{who} {what}')}", file=sys.stderr)
    sys.exit(1)


def listed(places: Sequence[object]) -> str:
    """Directories for a status line: their names, or how many there are where they are more than three."""
    return ", ".join(map(str, places)) if len(places) <= 3 else f"{len(places)} directories"


def require(package: str, of: str, extra: str) -> None:
    """Import a package that a part of the program needs.

    Args:
      package: its name.
      of: what needs it.
      extra: the extra that brings it.

    Raises:
      ConfigError: if it is not installed.
    """
    try:
        importlib.import_module(package)
    except ImportError:
        raise ConfigError(f"{of} needs {package.capitalize()}: pip install 'stellaris-jax[{extra}]'.") from None


@contextmanager
def signalled() -> Iterator[None]:
    """Training within the context, which ends the process with the shell's exit code once a signal has ended it."""
    from stellaris_jax.training.session import Interrupted
    from stellaris_jax.training.signals import Abandoned

    try:
        yield
    except Interrupted as stop:
        sys.exit(128 + stop.signum)
    except Abandoned as stop:
        sys.stdout.flush()
        os._exit(128 + stop.signum)  # an orderly end would wait for what is still being computed


class _Errors:
    """The standard error, whose own errors end nothing: a disk that is full, or a reader that has gone."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Output:
    """The standard output, and the error that it ended with: argparse ignores it, rich exits with a code of its own."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        return self._told(self.stream.write, text)

    def flush(self) -> None:
        self._told(self.stream.flush)

    def _told(self, do: Callable[..., Any], *arguments: str) -> Any:
        try:
            return do(*arguments)
        except OSError as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
