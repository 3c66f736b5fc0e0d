"""Devices and the compiler."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import jax
from jax.sharding import AxisType, Mesh

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import return_freed_memory
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes

AXIS = "learner"
MOST_EMULATED = 1024


def emulate(devices: int) -> None:
    """Emulate a number of CPU devices, at most `MOST_EMULATED`, unless JAX has started already.

    Devices of other platforms do not change.
    """
    if max(1, jax.config.values["jax_num_cpu_devices"]) < devices <= MOST_EMULATED:
        with suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", devices)


def use_devices(devices: int, distributed: bool = False, threads: int | None = None) -> None:
    """Start JAX, unless it has started. Warns if CUDA fails to start and JAX computes on the CPU instead.

    Args:
      devices: smallest number of devices; CPU devices are emulated.
      distributed: whether this is one process of several.
      threads: threads for CPU operations; JAX's default is one per core.

    Raises:
      ConfigError: the devices are not available, or JAX computes in 64 bits.
    """
    if jax.config.values["jax_enable_x64"]:
        raise ConfigError(
            "JAX_ENABLE_X64 (jax_enable_x64) must be off: programs, checkpoints and results here are of 32 bits; unset "
            "it, or set it to 0."
        )
    if distributed:
        processes.join(devices)
        return
    emulate(devices)
    try:
        with _starting(threads):
            available, platform = jax.device_count(), jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX raises an empty AssertionError for cuda without visible GPUs
        raise ConfigError(not_started(_wanted(), str(error))) from error
    if platform == "cpu" and not _wanted() and (reason := _lost_cuda()):
        warnings.warn(f"{_no_cuda(reason)} This run computes on the CPU.", RuntimeWarning, stacklevel=2)
    if devices > available:
        most = f"JAX sees {available} {platform} device(s)"
        if platform == "cpu":
            most = f"a CPU passes for {MOST_EMULATED} at most, and for {available} now that JAX has started"
        raise ConfigError(f"engine.devices={devices} is too many: {most}.")


def not_started(wanted: str | None, error: str) -> str:
    """Error message for a platform that JAX could not start.

    Args:
      wanted: value of JAX_PLATFORMS; `None` if it is not set.
      error: message of JAX's error.
    """
    if "'cuda'" in error or {"cuda", "gpu"} & {*(wanted or "").split(",")}:
        return _no_cuda(reason_of(error) or "JAX sees no NVIDIA GPU")
    if wanted:
        return f"JAX_PLATFORMS={wanted} asks for a platform that JAX cannot start here; leave it unset, or say cpu."
    return f"JAX could not start ({reason_of(error)}); set JAX_PLATFORMS=cpu to compute on the CPU."


def reason_of(error: str) -> str:
    """Reason from a JAX error message about a failed backend, on one line, without JAX's advice.

    >>> reason_of("Unable to initialize backend 'cuda': no devices. (you may need to uninstall the failing plugin ...)")
    'no devices'
    """
    text = re.sub(r"\((?:you may need to|set JAX_PLATFORMS=).*|Available backends are .*", "", " ".join(error.split()))
    text = re.sub(r"^(?:Unable to initialize backend|Backend) '\w+'(?: failed to initialize)?: ", "", text)
    return text.strip().rstrip(".")[:LONGEST_REASON]


LONGEST_REASON = 300
"""Largest number of characters of a quoted reason."""


def _no_cuda(reason: str) -> str:
    return (
        f"CUDA did not start ({reason}); check the driver with nvidia-smi, install CUDA's packages that fit it with "
        "pip install 'stellaris-jax[cuda12]' or 'stellaris-jax[cuda13]', or set JAX_PLATFORMS=cpu."
    )


def _wanted() -> str | None:
    """Platforms that the user has requested from JAX; `None` without a request."""
    return os.environ.get("JAX_PLATFORMS") or jax.config.values["jax_platforms"] or None


def _lost_cuda() -> str:
    """JAX's reason for not using a GPU whose plug-in is installed; empty if there is none."""
    plugin = any("cuda" in entry.name for entry in entry_points(group="jax_plugins"))
    if not plugin or not _has_gpu():
        return ""
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        return reason_of(str(error))
    return ""


def _has_gpu() -> bool:
    """Whether the kernel's NVIDIA driver offers a GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


CRASHES = ("brax/",)
"""Environments that crash XLA's CPU compiler when they are spread over several devices (jaxlib 0.11.2)."""


def check_spread(env: str, devices: int) -> None:
    """Raise ConfigError if an environment cannot be spread over this number of devices; JAX must have started."""
    if devices > 1 and jax.default_backend() == "cpu" and env.lower().startswith(CRASHES):
        raise ConfigError(
            f"engine.devices={devices} is not possible with env.name={env} on a CPU, where XLA's compiler crashes on "
            "it; leave it at 1, which is faster there anyway."
        )


SMALL = 2**21
"""Largest product between hidden layers, in multiply-adds, for which one thread was faster than two (measured)."""


def threads_of(config: Config) -> int | None:
    """Recommended number of threads for a run's CPU operations; `None` for JAX's default.

    XLA distributes ready operations among its threads, and waking a thread takes longer than a small operation. If all
    operations are small, this makes runs 5 to 10 % slower, and up to 24 % if another process uses the other core
    (docs/speed.md). Results are the same to the bit. Runs of several seeds need all threads; with an accelerator,
    compilation does, too.
    """
    if jax.config.values["jax_platforms"] != "cpu" and (entry_points(group="jax_plugins") or find_spec("libtpu")):
        return None
    algorithm, network = config.algorithm, config.network
    buffer = ReplayBuffer.of(config)
    samples = config.env.num_envs * algorithm.rollout_length // algorithm.minibatches
    batch = samples if buffer is None else buffer.batch
    small = batch * max(network.hidden, default=1) ** 2 <= SMALL and network.torso == "mlp" and network.memory == "none"
    single = config.num_seeds == config.engine.devices == 1 and not config.engine.distributed
    control = config.env.name.startswith("gymnax/") and config.env.name.endswith(("-v0", "-v1"))  # small observations
    return 1 if small and single and control and config.executor == "simulated" else None


THREADS: list[str | None] = []
"""Number of CPU threads (`NPROC`) at the first call of `use_devices`, which may have started JAX with it."""


@contextmanager
def _starting(threads: int | None) -> Iterator[None]:
    """Context in which JAX starts with this number of CPU threads, unless the user has set `NPROC`."""
    given = "NPROC" in os.environ
    if threads is not None and not given:
        os.environ["NPROC"] = str(threads)
    try:
        yield
    finally:
        if not THREADS:
            THREADS.append(os.environ.get("NPROC"))
        if not given:
            os.environ.pop("NPROC", None)


def make_mesh(devices: int) -> Mesh:
    """Mesh of the first `devices` devices, on one axis."""
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


CPU_OPTIONS: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""Compiler options for CPUs: XLA's library fusions beyond single products slow small physics operations by a sixth."""


COMPILING = threading.Lock()
"""Lock that serialises compilation: the compiler is multi-threaded itself."""


@contextmanager
def _compiling() -> Iterator[None]:
    """Compilation, alone; the compiler frees half a gigabyte after a token task."""
    with COMPILING:
        try:
            yield
        finally:
            return_freed_memory()


def compile_for_backend(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program; on a CPU with `CPU_OPTIONS`, if this XLA supports them."""
    with _compiling():
        return _compile(lowered)


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    if jax.default_backend() == "cpu":
        try:
            return lowered.compile(compiler_options=CPU_OPTIONS)
        except jax.errors.JaxRuntimeError as error:
            if not any(name in str(error) for name in CPU_OPTIONS):
                raise
    return lowered.compile()


def compile_plainly(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program without options."""
    with _compiling():
        return lowered.compile()
