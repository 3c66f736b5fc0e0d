"""Common parts of the commands: parsing of numbers and options, and exit codes."""

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
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from stellaris_jax.base.commands import command, localised
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.registry import author, search_folder
from stellaris_jax.base.watch import at_work
from stellaris_jax.cli.working import Stream
from stellaris_jax.config.schema import LAST_SEED
from stellaris_jax.config.trust import Trust

SIGINT, SIGPIPE = 128 + 2, 128 + 13
"""Exit codes of a program that a signal has ended, as shells have them."""
STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
"""Standard streams by their numbers, and how the null device takes their places where they are closed."""
LONGEST_NAME = 255
"""Bytes of the longest name of a file, on Linux and macOS."""
COLLECT_AFTER = (50_000, 20, 100)
"""Garbage collection thresholds, in objects and in younger collections, for Python's three generations."""


class Parser(argparse.ArgumentParser):
    """Argument parser that prints a docstring unchanged, and reports a mistake in one line."""

    def __init__(self, name: str, description: str | None = None, **options: Any):
        about = localised(description) if description else None
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=command(name), description=about, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")

    def parse_mixed(self, argv: Sequence[str]) -> argparse.Namespace:
        """Arguments of a command line on which positionals stand before, between and after options."""
        # With intermixed arguments argparse drops `--`, and would read what follows as options.
        return self.parse_args(argv) if "--" in argv else self.parse_intermixed_args(argv)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options `--plugin` and `--trust`, by which a user allows a stored run's imports; see `trust_of`."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="NAME",
        help="allow a run that others made to import this plug-in, module or service that its config.yaml names; "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument("--trust", action="store_true", help="allow all that its config.yaml names: run its code")


def trust_of(arguments: argparse.Namespace) -> Trust:
    """Consent of the command line to a stored run's imports and connections. Searches the current folder, too."""
    if arguments.trust and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    search_folder(name for name in arguments.plugin if re.fullmatch(r"[\w.]+", name) and not name.endswith(".py"))
    return bool(arguments.trust) or list(arguments.plugin)


class SubParser(Parser):
    """Parser of a subcommand."""

    def __init__(self, **options: Any):
        argparse.ArgumentParser.__init__(self, **options)


def at_least(low: int) -> Callable[[str], int]:
    """Type for `add_argument`: an integer that is not below `low`."""

    def integer(text: str) -> int:
        if not (text.isascii() and text.removeprefix("-").isdecimal()) or len(text) > 18 or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {low}, not {text!r}")
        return int(text)

    return integer


def seed(text: str) -> int:
    """Type for `add_argument`: a random seed."""
    number = at_least(0)(text)
    if number > LAST_SEED:
        raise argparse.ArgumentTypeError(f"must be at most {LAST_SEED}, not {text}")
    return number


def kept_round(text: str) -> int | str:
    """Type for `add_argument`: a round, or `best`."""
    if text == "best":
        return text
    try:
        return at_least(0)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be the number of a round, or best, not {text!r}") from None


def add_round(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a checkpoint."""
    about = "round of another checkpoint that was kept, or best: that of the evaluation with the highest return"
    parser.add_argument("--round", type=kept_round, metavar="N|best", help=about)


def finite(text: str) -> float:
    """Type for `add_argument`: a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return number


def path(text: str) -> Path:
    """Type for `add_argument`: a path, not empty, which Python would take for the current folder, and not too long."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, such as . for the current folder, not ''")
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in Path(text).parts):
        raise argparse.ArgumentTypeError(f"must be a path whose names have at most {LONGEST_NAME} bytes")
    return Path(text)


def entry(main: Callable[[Sequence[str]], None]) -> Callable[..., None]:
    """Decorator of a command's `main`: the process's arguments are the default, and it exits as `run` does."""

    @wraps(main)
    def command_main(argv: Sequence[str] | None = None) -> None:
        run(lambda: main(sys.argv[1:] if argv is None else argv))

    return command_main


def run(main: Callable[[], None]) -> None:
    """Run a command's `main`, and exit with the usual codes.

    A ConfigError exits with code 2 and one line on stderr. A RunError, and output that cannot be written, exit with
    code 1 and one line. A plug-in's error does so too, with the traceback above that line for its author. If the reader
    of a pipe has gone (`| head`), or at Ctrl-C, the program exits silently with the shell's exit codes.
    """
    # Imports and JAX's tracing make millions of lasting objects. Scanning them as often as Python does by default takes
    # 5 to 10 % of the time to the first training step.
    gc.set_threshold(*COLLECT_AFTER)
    reopen_streams()
    before = at_work()
    try:
        with redirect_stderr(_Errors(sys.stderr)):  # type: ignore[type-var]
            ended(main)
    except SystemExit as stop:
        if at_work() <= before:
            raise
        # An abandoned host environment that returns while Python shuts down would abort the process.
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
    """Run `main` as `run` does, within a program: every known end becomes a SystemExit."""
    output = sys.stdout if isinstance(sys.stdout, _Output) else _Output(sys.stdout)
    try:
        with redirect_stdout(output):  # type: ignore[type-var]
            try:
                main()
            except SystemExit as stop:  # after --help, for example
                with suppress(OSError) if _is_by_signal(stop) else nullcontext():
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
        # Discard pending output; Python would complain that it cannot be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        broken, output.error = output.error, None  # a command around this one would report it again
        if isinstance(broken, BrokenPipeError):
            sys.exit(SIGPIPE)
        if _is_by_signal(error):  # such as SIGHUP when the terminal closes
            sys.exit(error.code)
        print(f"error: the output cannot be written ({broken.strerror}).", file=sys.stderr)
        sys.exit(1)


def _is_by_signal(error: BaseException) -> TypeGuard[SystemExit]:
    """Whether a program ends with the exit code of a signal."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


def _blame(error: Exception | SystemExit) -> None:
    """Exit with a line about the plug-in that raised an error, if one did."""
    plugin = author(error)
    if plugin is None:
        return
    traceback.print_exception(error)
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        what = f"called sys.exit({code}), which must not end a run; a callback ends it by returning true."
    else:
        what = f"failed: {type(error).__name__}: {error}"
    print(f"error: {ConfigError(f'{plugin} {what}')}", file=sys.stderr)
    sys.exit(1)


def listed(places: Sequence[object]) -> str:
    """Directories for a status line: their names, or their number if there are more than three."""
    return ", ".join(map(str, places)) if len(places) <= 3 else f"{len(places)} directories"


def require(package: str, of: str, extra: str) -> None:
    """Import a package that a part of the program needs.

    Args:
      package: its name.
      of: the part that needs it.
      extra: the extra that installs it.

    Raises:
      ConfigError: it is not installed.
    """
    try:
        importlib.import_module(package)
    except ImportError:
        raise ConfigError(f"{of} needs {package.capitalize()}: pip install 'stellaris-jax[{extra}]'.") from None


@contextmanager
def signalled() -> Iterator[None]:
    """Context of training: once a signal has ended the training, the process exits with the shell's exit code."""
    from stellaris_jax.execute.session import Interrupted
    from stellaris_jax.runs.signals import Abandoned

    try:
        yield
    except Interrupted as stop:
        sys.exit(128 + stop.signum)
    except Abandoned as stop:
        sys.stdout.flush()
        os._exit(128 + stop.signum)  # a normal exit would wait for running computations


class _Errors(Stream):
    """Standard error whose own errors, such as a full disk or a reader that has gone, end nothing."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


class _Output(Stream):
    """Standard output that remembers its last error: argparse ignores it, and rich exits with a code of its own."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        return self._remembering_errors(self.stream.write, text)

    def flush(self) -> None:
        self._remembering_errors(self.stream.flush)

    def _remembering_errors(self, do: Callable[..., Any], *arguments: str) -> Any:
        try:
            return do(*arguments)
        except OSError as error:
            self.error = error
            raise
