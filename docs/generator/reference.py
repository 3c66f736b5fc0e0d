"""Pages of the public names, made of their docstrings and signatures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

import stellaris_jax as sj
from generator.docstrings import line, markdown

GROUPS = {
    "training": (
        "Training and policies",
        "From a configuration to a policy, in Python.",
        ["load_config", "train", "Trainer", "Population", "load_policy", "Policy", "Config", "ConfigError"],
        ["base.errors.RunError", "engine.evaluate.Evaluation"],
    ),
    "plugins": (
        "What plug-ins are made of",
        "Bases to subclass and the registry that takes them; [](/howto/plugins.md) shows one of each.",
        ["register", "knob", "Rule", "Weight", "Admission", "DataAdmission", "Delay", "Scaling", "PolicyNetwork",
         "ActorCritic", "Algorithm", "PolicyObjective", "Advantage", "Estimate", "GAE", "Optimizer", "Mask",
         "Correction", "Logger", "Wrapper", "Pool"],
        ["agent.losses.TargetNetwork", "agent.networks.distributions.Distribution", "base.registry.Kind",
         "config.optioned.Optioned", "config.optioned.Numbered"],
    ),
    "environments": (
        "Environments",
        "Spaces, bases, and the check of what an environment promises.",
        ["AutoResetEnv", "Box", "Discrete", "MultiDiscrete", "MultiBinary", "HostStep", "check_env"],
        ["envs.base.VecEnv", "envs.base.TimeStep", "envs.base.HostEnv", "envs.base.HostPool"],
    ),
    "seen": (
        "What plug-ins look at",
        "Records that rules, losses, estimators, masks and corrections are given.",
        [],
        ["timeline.view.View", "timeline.data_admission.DataView", "timeline.records.Fragment",
         "timeline.records.Gradient", "timeline.records.Group", "timeline.records.Round",
         "timeline.scaling.rules.RoundSummary", "timeline.scaling.limits.Limits", "agent.losses.common.LossInputs",
         "agent.losses.common.Samples", "agent.losses.common.AdvantageInputs", "agent.losses.common.Steps",
         "agent.losses.common.Metrics", "agent.losses.common.METRICS", "agent.losses.common.DRIFT",
         "agent.losses.common.total", "agent.losses.common.mean", "agent.losses.common.effective_sample_size",
         "agent.losses.common.importance_ratio", "agent.losses.truncation.truncated_ratio",
         "agent.losses.gae.linear_recurrence", "agent.hyper.Hyper", "agent.networks.recurrent.Past",
         "agent.losses.masks.MaskInputs", "engine.corrections.Stack", "engine.corrections.Context",
         "live.pool.Call", "live.pool.Done", "live.functions.Functions",
         "engine.corrections.Average", "engine.corrections.GroupAverage"],
    ),
}  # fmt: skip
"""Pages: title, what they are about, names of `stellaris_jax`, and what else a plug-in's author meets."""


class Raw:
    """An annotation that is shown as it was written."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def pages() -> dict[str, str]:
    """A page for each group; public names that none has are on the first."""
    made, listed = {}, {"__version__", *(name for _, _, names, _ in GROUPS.values() for name in names)}
    for stem, (title, about, names, others) in GROUPS.items():
        names = [*names, *(sorted({*sj.__all__} - listed) if stem == "training" else ())]
        entries = [_entry(name, getattr(sj, name), f"stellaris_jax.{name}") for name in names]
        for path in others:
            module, _, name = path.rpartition(".")
            place = import_module(f"stellaris_jax.{module}")
            thing, about_it = getattr(place, name), _attributes(place).get(name, "")
            path = f"stellaris_jax.{path}"
            entries.append(_entry(name, thing, path) if not about_it else _constant(name, thing, path, about_it))
        made[f"reference/{stem}.md"] = "\n\n".join([f"# {title}", about, *entries]) + "\n"
    return made


def _entry(name: str, thing: Any, path: str) -> str:
    """A class with its members, a function, or an object."""
    head = f"## `{name}`"
    if inspect.isclass(thing):
        hints = "" if issubclass(thing, Exception) or _is_protocol(thing) else _signature(thing)
        inside = "\n\n".join([markdown(_own_doc(thing)), *_members(thing)])
        return f"{head}\n\n``````{{py:class}} {path}{hints}\n\n{inside}\n``````"
    if callable(thing) and inspect.isfunction(thing):
        return f"{head}\n\n``````{{py:function}} {path}{_signature(thing)}\n\n{markdown(thing)}\n``````"
    inside = "\n\n".join([markdown(type(thing)), *_kinds(thing)])
    return f"{head}\n\n``````{{py:data}} {path}\n\n{inside}\n``````"


def _constant(name: str, thing: Any, path: str, about: str) -> str:
    """Entry of a type or a dictionary that a module names, with the docstring below it."""
    rows = [f"- `{key}`: {line(value)}" for key, value in thing.items()] if isinstance(thing, dict) else []
    inside = "\n\n".join([markdown(about), *(["\n".join(rows)] if rows else [])])
    return f"## `{name}`\n\n``````{{py:data}} {path}\n\n{inside}\n``````"


@cache
def _attributes(thing: type | ModuleType) -> dict[str, str]:
    """Docstrings below the attributes of a class or a module, by name."""
    try:
        tree = ast.parse(inspect.cleandoc(f"\n{inspect.getsource(thing)}"))
    except (OSError, TypeError):
        return {}
    body = tree.body if inspect.ismodule(thing) else tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for node, below in pairwise(body):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found |= {target.id: str(below.value.value) for target in targets if isinstance(target, ast.Name)}
    return found


def _kinds(registry: Any) -> Iterator[str]:
    for attribute, kind in registry.kinds().items():
        form = f", {kind.form}" if kind.form else ""
        yield f"- `register.{attribute}(name)`: {kind.name}{form}"


def _own_doc(thing: type) -> str:
    """The docstring, unless it is what `dataclass` and `NamedTuple` make up."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return "" if text.startswith(f"{thing.__name__}(") else text


def _members(thing: type) -> Iterator[str]:
    for name, about in _attributes(thing).items():
        if not name.startswith("_") and name in vars(thing):
            default = vars(thing)[name]
            value = f"\n:value: {default!r}" if isinstance(default, bool | int | str | tuple) else ""
            yield f"`````{{py:attribute}} {name}{value}\n\n{markdown(about)}\n`````"
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            if inspect.getdoc(member.fget):
                yield f"`````{{py:property}} {name}\n\n{markdown(member.fget)}\n`````"
        elif inspect.isfunction(function) and function.__module__.startswith("stellaris_jax") and function.__doc__:
            flag = ":classmethod:\n" if isinstance(member, classmethod) else ""
            flag = ":staticmethod:\n" if isinstance(member, staticmethod) else flag
            bound = isinstance(member, staticmethod)
            yield f"`````{{py:method}} {name}{_signature(function, bound)}\n{flag}\n{markdown(function)}\n`````"


def _is_protocol(thing: type) -> bool:
    return bool(getattr(thing, "_is_protocol", False))


def _signature(thing: Any, whole: bool = True) -> str:
    """The signature as it was written; without its first parameter unless `whole`."""
    signature = inspect.signature(thing)
    parameters = list(signature.parameters.values())
    if not whole and parameters:
        parameters = parameters[1:]
    shown = [p.replace(annotation=_raw(p.annotation), default=_default(p.default)) for p in parameters]
    returns = signature.empty if inspect.isclass(thing) else _raw(signature.return_annotation)
    return str(signature.replace(parameters=shown, return_annotation=returns))


def _raw(annotation: Any) -> Any:
    annotation = getattr(annotation, "__forward_arg__", annotation)  # as named tuples keep theirs
    return Raw(annotation) if isinstance(annotation, str) else annotation


def _default(default: Any) -> Any:
    """A default, unless it would be shown with an address in memory; a module by its name, not by where it lies."""
    if inspect.ismodule(default):
        return Raw(default.__name__)
    return Raw("...") if re.search(r" at 0x|factory", repr(default)) else default
