"""Generated pages of the documentation: every method, key and public name has its entry, with its results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import REPOSITORY
from pages_of_docs import commands, generator, made

import stellaris_jax
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.tree import knobs
from studies.claims import corrected, more, write_claims
from studies.map import settings
from studies.map.cells import COMBINED, METHODS, Cell
from studies.training import Variant


def test_everything_with_a_name_has_a_page() -> None:
    for place in PLACES:
        kind = next(attribute for attribute, kind in stellaris_jax.register.kinds().items() if kind is place.kind)
        for name in [name for name, thing in place.kind.items() if thing.__module__.startswith("stellaris_jax.")]:
            page = made()[f"methods/{kind}-{name}.md"]
            assert f"# `{name}`" in page and "stellaris-jax train" in page and ":pyobject:" in page
            assert f"methods/{kind}-{name}.md" in made()[f"methods/{kind}.table"]


def test_every_key_has_an_entry() -> None:
    page = made()["reference/configuration.md"]
    for key in knobs():
        assert f"```{{confval}} {key}\n" in page
    assert "`system.rule_options.decay`" in page and "In (0, 1]" not in page


def test_every_public_name_has_an_entry() -> None:
    pages = "".join(text for name, text in made().items() if name.startswith("reference/"))
    for name in {*stellaris_jax.__all__} - {"__version__"}:
        assert re.search(rf"\{{py:\w+\}} stellaris_jax\.{name}\b", pages), name


def test_pages_of_methods_have_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator()
    from generator import methods

    more_than = "learns more than async, each at its best rate"
    claims = [more(f"cartpole, 8 learners: {name} {more_than}", "–", [3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
              for name in ("KL gate", "TIS", "SSP")]  # fmt: skip
    write_claims(corrected(claims), tmp_path / "claims_methods.csv")
    monkeypatch.setattr(methods, "MAP", tmp_path)
    for kind, name, called in [
        ("correction", "kl_gate", "KL gate"),
        ("algorithm", "tis", "TIS"),
        ("rule", "ssp", "SSP"),
    ]:
        page = methods.page(kind, name, stellaris_jax.register[kind][name])
        assert re.findall(r"^\| cartpole, 8 learners: (.*) learns more", page, flags=re.M) == [called]
    assert "results here" not in methods.page("correction", "ess", stellaris_jax.register["correction"]["ess"])


@pytest.mark.parametrize(
    ("kind", "name", "called"),
    [
        ("correction", "kl_gate", ["KL gate", *COMBINED]),
        ("mask", "dppo", ["DPPO"]),
        ("weight", "polynomial", ["polynomial"]),
        ("weight", "power", ["softsync, w = 1/s", "w", "w, truncation", "gate, w", "gate, w, truncation"]),
        ("rule", "async", ["async"]),
        ("rule", "softsync", ["softsync", "softsync, w = 1/s", "FedBuff", "capacity (AReaL)", "KL gate, softsync"]),
        ("correction", "ess", ["ESS", "KL gate, ESS"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pages_of_methods_show_what_was_tested(kind: str, name: str, called: list[str]) -> None:
    """Every method of the map that has it, with its base system, and the first one's command with all constants."""
    page = made()[f"methods/{kind}-{name}.md"]
    tested = page.partition("## As it was tested")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (?!method)(.+?) \| `(.+)` \|$", tested, re.M))
    every = {**METHODS, **COMBINED}
    assert {method: tuple(words.split()) for method, words in rows.items()}.items() >= {
        method: every[method] for method in called
    }.items()
    (words,) = commands(tested)
    assert tuple(words[1:]) == Cell("cartpole", next(iter(rows)), 8, "1e-3").variant.overrides
    assert next(iter(rows)) == called[0]


def test_the_map_shows_what_was_tested() -> None:
    """Its page and its cells agree; `stellaris-jax reproduce index` writes the table."""
    text = (REPOSITORY / "results" / "map" / "README.md").read_text()
    shown = text.partition(settings.BEGIN)[2].partition(settings.END)[0].strip()
    assert shown == settings.block(), "stellaris-jax reproduce index"
    assert f"| KL gate at 0.01 | `{' '.join(COMBINED['KL gate at 0.01'])}` |" in shown


def test_parallax_is_the_gate_of_the_map() -> None:
    """Its page names it, and both are one configuration."""
    page = made()["methods/correction-kl_gate.md"]
    assert "`system=parallax` is pure asynchrony (`system=async`) with this gate at trust_kl=0.01" in page
    gate = settings.cell("KL gate at 0.01").variant
    own = [word for word in gate.overrides if word not in COMBINED["KL gate at 0.01"]]
    assert Variant("parallax", ("system=parallax", *own)).digest == gate.digest


def test_pages_do_not_tell_where_they_were_made() -> None:
    for name, text in made().items():
        assert not re.search(r"site-packages|<module '", text), name


def test_docstrings_become_markdown() -> None:
    generator()
    from generator.docstrings import line, markdown

    text = """Weights times exp(-KL / kappa), for `pi` < 1 and system.delta=3.

    >>> 1 + 1
    2

    Args:
      rate: of -alpha_0,
        in steps.

        x = theta * 2
    """
    assert markdown(text).split("\n\n") == [
        "Weights times exp(-KL / κ), for `pi` &lt; 1 and system.delta=3.",
        "```pycon\n>>> 1 + 1\n2\n```",
        "**Arguments**",
        "- `rate`: of -α_0,\n  in steps.",
        "```text\nx = θ * 2\n```",
    ]
    assert line("|theta|\n a") == "\\|θ\\| a"
