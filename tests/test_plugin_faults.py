"""Plug-ins that fail while a run is under way: whose fault it is, and how to go on, for what was trained before."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import call

from stellaris_jax import register
from stellaris_jax.execute.run import open_run

SMALL = ["total_steps=256", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=4", "network.hidden=[4]",
         "system=stellaris", "system.learners=4", "evaluation.episodes=2",
         "evaluation.points=4", "engine.chunk_rounds=1", "run.progress=false", "run.dir=run"]  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that a test registers are removed after it."""
    for kind in register.kinds().values():
        list(kind)  # ours are there
        for names in ("_entries", "_places"):
            monkeypatch.setattr(kind, names, dict(vars(kind)[names]))


FAULTS = {
    "the rule {}": (
        "system.rule",
        "@sj.register.rule('{}')\nclass Odd(sj.Rule):\n    def ready(self, staleness, view):\n        return 1 / 0",
    ),
    "the admission policy {}": (
        "system.admission",
        "@sj.register.admission('{}')\nclass Odd(sj.Admission):\n    def keeps(self, staleness, view):\n        1 / 0",
    ),
    "the delay model {}": (
        "delays.learner.kind",
        "@sj.register.delay('{}')\nclass Odd(sj.Delay):\n    def durations(self, noise, xp=None):\n        1 / 0",
    ),
    "the scaling rule {}": (
        "scaling.rule",
        "@sj.register.scaling('{}')\nclass Odd(sj.Scaling):\n    def choose(self, seen):\n        return one() / 0\n"
        "def one():\n    return [1][1]",
    ),
    "the torso {}": (
        "network.torso",
        "import flax.linen as nn\n@sj.register.torso('{}')\nclass Odd(nn.Module):\n    kernel_init: object\n"
        "    @nn.compact\n    def __call__(self, x):\n        return x / (1 // 0)",
    ),
    "the algorithm {}": (
        "algorithm.name",
        "@sj.register.algorithm('{}')\nclass Odd(sj.Algorithm):\n"
        "    def loss(self, inputs):\n        return inputs.value / (1 // 0)",
    ),
    "the callback {}": (
        "run.callbacks",
        "@sj.register.callback('{}')\ndef odd(round_, record, trainer):\n    round_ > 1 and 1 / 0",
    ),
    "Pool.send": (
        "env",
        "import numpy as np\nclass Pool:\n    def __init__(self, n): self.n = n\n    def recv(self):\n"
        "        obs, none = np.zeros((self.n, 1), np.float32), np.zeros(self.n, bool)\n"
        "        return sj.HostStep(obs, obs[:, 0], none, none)\n"
        "    def send(self, action):\n        1 / 0\n    def close(self): ...\n"
        "@sj.register.environment('mine/{}')\nclass Odd:\n    name, max_episode_steps = 'mine/{}', 5\n"
        "    observation_space, action_space = sj.Box((1,), (-1.0,), (1.0,)), sj.Discrete(2)\n"
        "    def open(self, num_envs, seed, evaluation=False):\n        return Pool(num_envs)",
    ),
}
"""The faulty part, the key that names it, and the plug-in; `{}` is its name."""


@pytest.mark.parametrize("who", list(FAULTS))
def test_a_plugin_that_fails_is_told_of(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key, text = FAULTS[who]
    path, name = tmp_path / "my.py", f"odd_{list(FAULTS).index(who)}"
    path.write_text("import stellaris_jax as sj\n" + text.replace("{}", name))
    value = {"env": f"mine/{name}", "run.callbacks": f"[{name}]"}.get(key, name)
    ended = call("train.py", f"plugins=[{path}]", *SMALL, f"{key}={value}")
    *trace, last = ended.stderr.splitlines()
    reason = "IndexError: list index out of range" if "scaling" in who else "ZeroDivisionError: "
    assert last.startswith(f"error: {who.format(name)} (plugins=[{path}]) failed: {reason}"), ended.stderr
    assert ended.returncode == 1
    assert f'  File "{path}", line ' in "\n".join(trace) and trace[0].startswith("Traceback")


HEAD = "import jax.numpy as jnp\nimport numpy as np\nimport stellaris_jax as sj\n"
NONSENSE = {
    "state": (
        "system.corrections=[{}]",
        "@sj.register.correction('{}')\nclass Odd(sj.Correction):\n    def init(self, params):\n"
        "        return jnp.zeros(3)\n    def update(self, stack, state, context):\n        return stack, state[:2]",
        r"system.corrections=\[{}\] \(PATH, line 8\) returns a state of float32\[2\], which was float32\[3\] before\.",
    ),
    "nothing": (
        "system.corrections=[{}]",
        "@sj.register.correction('{}')\nclass Odd(sj.Correction):\n    def update(self, stack, state, context):\n"
        "        pass",
        r"system.corrections=\[{}\] \(PATH, line 6\) returns nothing from update, not a stack and a state\.",
    ),
    "carry": (
        "network.memory={}",
        "@sj.register.memory('{}')\nclass Odd(sj.Cell):\n    def __call__(self, carry, x):\n"
        "        return carry[:, :1], carry",
        r"network.memory={} \(PATH, line 6\) returns a carry of float32\[2, 1\], which was float32\[2, 64\] before\.",
    ),
    "answer": (
        "run.callbacks=[{}]",
        "@sj.register.callback('{}')\ndef odd(round_, record, trainer):\n    return 'enough'",
        r"the callback {} \(PATH, line 4\) returned 'enough'; accepted: true, which ends the run, false or None\.",
    ),
    "step": (
        "env=mine/{}",
        "class Pool:\n    def recv(self):\n        return None\n    def send(self, action): ...\n"
        "    def close(self): ...\n@sj.register.environment('mine/{}')\nclass Odd:\n"
        "    name, max_episode_steps = 'mine/{}', 5\n"
        "    observation_space, action_space = sj.Box((1,), (-1.0,), (1.0,)), sj.Discrete(2)\n"
        "    def open(self, num_envs, seed, evaluation=False):\n        return Pool()",
        r"mine/{} returned a NoneType from recv \(PATH, line 5\), not a HostStep\.",
    ),
}
"""The override, the plug-in, and what is said of it."""


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_one_sentence_with_file_and_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    override, text, sentence = NONSENSE[what]
    path, name = tmp_path / "my.py", f"nonsense_{what}"
    path.write_text(HEAD + text.replace("{}", name))
    ended = call("train.py", f"plugins=[{path}]", *SMALL, override.replace("{}", name))
    assert ended.returncode in (1, 2)
    expected = sentence.replace("{}", name).replace("PATH", re.escape(str(path)))
    assert re.search(expected, ended.stderr.splitlines()[-1]), ended.stderr


def test_a_rule_that_never_says_ready_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.py"
    path.write_text(
        f"{HEAD}@sj.register.rule('never')\nclass Never(sj.Rule):\n    def ready(self, staleness, view):\n"
        "        return False\n"
    )
    ended = call("train.py", f"plugins=[{path}]", *SMALL, "system.rule=never")
    assert ended.returncode == 0, ended.stderr
    message = r"system.rule=never \(.*my.py, line 6\) never said ready: (\d+) of \1 groups were formed only because"
    assert re.search(message, ended.stdout), ended.stdout


def test_a_logger_never_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once, and left out."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.py"
    path.write_text(
        "import stellaris_jax as sj\n@sj.register.logger('odd')\nclass Odd(sj.Logger):\n"
        "    def rounds(self, records):\n        1 / 0\n"
    )
    ended = call("train.py", f"plugins=[{path}]", *SMALL, "run.loggers=[odd]")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"the logger odd (plugins=[{path}]) failed, and the run goes on without it") == 1


STOP = """
import sys
import stellaris_jax as sj
from stellaris_jax.base.errors import RunError

@sj.register.callback("NAME")
def stop(round_, record, trainer):
    if round_ == 3:
        END
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("sys.exit(0)", "called sys.exit(0), which must not end a run; a callback ends it by returning true"),
        ("sys.exit()", "called sys.exit()"),
        ("sys.exit('enough')", "called sys.exit('enough')"),
        ("raise RunError('enough')", "enough"),
    ],
)
def test_what_was_trained_before_is_kept(
    end: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, name = tmp_path / "my.py", f"stop {end}"
    path.write_text(STOP.replace("NAME", name).replace("END", end))
    ended = call("train.py", f"plugins=[{path}]", *SMALL, f'run.callbacks=["{name}"]')
    assert ended.returncode == 1 and message in ended.stderr.splitlines()[-1], ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert re.search(r"^stopped; round 3 is saved; continue with: python .*train\.py resume=run$", ended.stdout, re.M)
    assert open_run("run").round == 3


def test_a_plugin_that_fails_ends_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.py"
    path.write_text(STOP.replace("NAME", "swept").replace("END", "sys.exit(0)"))
    overrides = [line for line in SMALL if not line.startswith("run.dir")]
    swept = ["run.callbacks=[swept]", "seed=0", "hydra.sweep.dir=sweep"]
    ended = call("train.py", "-m", f"plugins=[{path}]", *overrides, *swept)
    assert ended.returncode == 1 and "called sys.exit(0)" in ended.stderr.splitlines()[-1], ended.stderr


def test_faults_of_ours_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their traceback, and nothing is said of plug-ins."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text("")
    monkeypatch.setattr("stellaris_jax.execute.session.Session._save", lambda session: json.loads("{"))
    ended = call("train.py", f"plugins=[{tmp_path / 'my.py'}]", *SMALL)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("json.decoder.JSONDecodeError")
