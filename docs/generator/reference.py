"""Pages of the public names, made of their docstrings and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import stellaris_jax as sj
from generator.docstrings import markdown

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
        ["register", "knob", "Rule", "Weight", "Admission", "DataAdmission", "Delay", "Scaling", "Algorithm",
         "PolicyObjective", "Mask", "Correction", "Logger", "Wrapper", "Pool"],
        ["base.registry.Kind", "config.optioned.Optioned", "config.optioned.Numbered"],
    ),
    "environments": (
        "Environments",
        "Spaces, bases, and the check of what an environment promises.",
        ["AutoResetEnv", "Box", "Discrete", "MultiDiscrete", "MultiBinary", "HostStep", "check_env"],
        ["envs.base.VecEnv", "envs.base.TimeStep", "envs.base.HostEnv", "envs.base.HostPool"],
    ),
    "seen": (
        "What plug-ins look at",
        "Records that rules, losses, masks and corrections are given.",
        [],
        ["timeline.view.View", "timeline.data_admission.DataView", "timeline.records.Fragment",
         "timeline.records.Gradient", "timeline.records.Group", "timeline.records.Round",
         "timeline.scaling.rules.RoundSummary", "timeline.scaling.limits.Limits", "agent.losses.common.LossInputs",
         "agent.losses.common.Samples", "agent.losses.common.Metrics", "agent.losses.common.total",
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
            thing = getattr(import_module(f"stellaris_jax.{module}"), name)
            entries.append(_entry(name, thing, f"stellaris_jax.{path}"))
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


def _kinds(registry: Any) -> Iterator[str]:
    for attribute, kind in registry.kinds().items():
        form = f", {kind.form}" if kind.form else ""
        yield f"- `register.{attribute}(name)`: {kind.name}{form}"


def _own_doc(thing: type) -> str:
    """The docstring, unless it is what `dataclass` and `NamedTuple` make up."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return "" if text.startswith(f"{thing.__name__}(") else text


def _members(thing: type) -> Iterator[str]:
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
    return Raw(annotation) if isinstance(annotation, str) else annotation


def _default(default: Any) -> Any:
    """A default, unless it would be shown with an address in memory; a module by its name, not by where it lies."""
    if inspect.ismodule(default):
        return Raw(default.__name__)
    return Raw("...") if re.search(r" at 0x|factory", repr(default)) else default
