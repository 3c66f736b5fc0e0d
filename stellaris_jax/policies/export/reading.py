"""Loading of policies: from a run directory, or from an exported file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.trust import Trust
from stellaris_jax.policies.export.artefact import ENDINGS, ExportedPolicy, read_intact

if TYPE_CHECKING:
    from stellaris_jax.policies.policy import Policy


def load_policy(path: str | Path, seed: int | None = None, trust: Trust = False) -> Policy | ExportedPolicy:
    """Newest policy saved in a run directory, or the policy in a file that `stellaris-jax export` wrote.

    A file needs few packages: `.stablehlo` JAX (with flatbuffers), `.onnx` onnxruntime, and both NumPy. `.msgpack`
    (flax) needs this package and gives a `Policy`, as a run directory does. Loading a file executes nothing except the
    policy's arithmetic.

    Args:
      path: run directory or exported file.
      seed: one of the run's seeds; by default the first.
      trust: plug-ins and environment modules of a run that may be imported: all (`True`), or those of these names; by
        default those that this user's own commands made or allowed.

    Raises:
      ConfigError: there is no policy, it is damaged or of another version, or a package is missing.
    """
    path = Path(path)
    if path.suffix not in ENDINGS.values() or path.is_dir():
        if path.suffix and not path.exists():
            raise ConfigError(f"{path}: there is no such file or directory.")
        if path.is_file():
            raise ConfigError(f"{path} is no policy; accepted: a run directory, {', '.join(ENDINGS.values())}.")
        return _of_run(path, seed, trust)
    if seed is not None:
        raise ConfigError(f"seed={seed} chooses among those of a run; {path} holds one policy.")
    data = read_intact(path)
    kind = next(name for name, ending in ENDINGS.items() if ending == path.suffix)
    try:
        policy: Policy | ExportedPolicy = import_module(f"stellaris_jax.policies.export.{kind}").read(data)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except ImportError as error:
        raise ConfigError(f"{path} needs the package {error.name}: pip install {error.name}.") from error
    except Exception as error:  # JAX, onnxruntime and flax may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path} cannot be read: {reason}.") from error
    return policy


def _of_run(run_dir: Path, seed: int | None, trust: Trust) -> Policy:
    from stellaris_jax.execute.run import open_run
    from stellaris_jax.policies.policy import policy_of

    return policy_of(open_run(run_dir, trust=trust), seed)
