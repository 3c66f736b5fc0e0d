"""Platforms that JAX cannot start: what is said of them, and what is advised. Failures of JAX are made up."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import jax
import pytest

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.engine import mesh

FAILED = (
    "Unable to initialize backend 'cuda': INTERNAL: CUDA driver version is insufficient for CUDA runtime version "
    "(you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)"
)
ADVICE = (
    "check the driver with nvidia-smi, install CUDA's packages that fit it with pip install 'stellaris-jax[cuda12]' or "
    "'stellaris-jax[cuda13]', or set JAX_PLATFORMS=cpu."
)


def failing(message: str, kind: type[Exception] = RuntimeError) -> object:
    def start(*_: object) -> None:
        raise kind(message)

    return start


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The user asks for no platform."""
    monkeypatch.setattr(mesh, "_wanted", lambda: None)
    return monkeypatch


def test_cuda_that_did_not_start(unset: pytest.MonkeyPatch) -> None:
    """With its plug-in installed JAX raises, though nobody asked for a platform."""
    unset.setattr(jax, "device_count", failing(FAILED))
    with pytest.raises(ConfigError) as caught:
        mesh.use_devices(1)
    reason = "INTERNAL: CUDA driver version is insufficient for CUDA runtime version"
    assert str(caught.value) == f"CUDA did not start ({reason}); {ADVICE}"


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ("cuda", "", "CUDA did not start (JAX sees no NVIDIA GPU); check the driver"),
        ("gpu,cpu", "", "CUDA did not start (JAX sees no NVIDIA GPU); check the driver"),
        (
            "cuda",
            "Unable to initialize backend 'cuda': out of it (set JAX_PLATFORMS='' to choose)",
            "(out of it); check",
        ),
        ("abacus", "Backend 'abacus' is not in the list", "JAX_PLATFORMS=abacus asks for a platform that JAX cannot"),
        (
            None,
            "Unable to initialize backend 'tpu': no chips. (you may need to x)",
            "JAX could not start (no chips); set",
        ),
    ],
    ids=["no-gpu", "alias", "asked-for", "unknown", "tpu"],
)
def test_what_is_said(wanted: str | None, error: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_wanted", lambda: wanted)
    monkeypatch.setattr(jax, "device_count", failing(error, RuntimeError if error else AssertionError))
    with pytest.raises(ConfigError) as caught:
        mesh.use_devices(1)
    assert message in str(caught.value)


def plugged_in(monkeypatch: pytest.MonkeyPatch, gpu: bool = True) -> None:
    """CUDA's plug-in is installed, and the kernel shows a GPU, or none."""
    monkeypatch.setattr(mesh, "entry_points", lambda group: [SimpleNamespace(name="xla_cuda13")])
    monkeypatch.setattr(mesh, "_has_gpu", lambda: gpu)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    failed = "Backend 'cuda' failed to initialize: no supported devices. Available backends are ['cpu']"
    monkeypatch.setattr(jax, "devices", failing(failed))


def test_a_gpu_that_is_left_alone_is_told_of(unset: pytest.MonkeyPatch) -> None:
    """A warning where JAX falls back to the CPU by itself."""
    plugged_in(unset)
    with pytest.warns(RuntimeWarning) as caught:
        mesh.use_devices(1)
    (warning,) = caught
    assert str(warning.message) == f"CUDA did not start (no supported devices); {ADVICE} This run computes on the CPU."


@pytest.mark.parametrize("case", ["no gpu", "cpu asked for"])
def test_who_wants_no_gpu_hears_nothing(case: str, unset: pytest.MonkeyPatch) -> None:
    plugged_in(unset, gpu=case != "no gpu")
    if case == "cpu asked for":
        unset.setattr(mesh, "_wanted", lambda: "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mesh.use_devices(1)
