"""MinionsRL's scheduler: its job as an environment, its training with our own PPO, its file, and the rule for it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import scheduler, seen
from settings import scaling_of
from training import assert_resumes, scalable

from stellaris_jax import ConfigError, Trainer, load_config, train
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, Discrete, TimeStep
from stellaris_jax.envs.registry import make, register
from stellaris_jax.many.scheduler_job import JobEnv
from stellaris_jax.many.scheduler_training import constant, random, run_jobs, scheduled, train_scheduler
from stellaris_jax.policies.policy import policy_of
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.scaling import Limits, MinionsRL, Scales, Scheduler
from stellaris_jax.timeline.scaling.scheduler import SHIPPED, SchedulerInput, features

SCALES = Scales(rounds=10, target=100.0, budget=1.0, seconds=10.0, kl=0.01)
JOB = [
    "env=gymnax/cartpole", "env.num_envs=8", "network.hidden=[4]", "algorithm.rollout_length=8", "algorithm.epochs=2",
    "algorithm.minibatches=4", "delays=constant", "scaling.maximum=4", "scaling.target=1000", "scaling.budget=1",
    "total_steps=320",
]  # fmt: skip


@pytest.fixture(scope="module")
def env() -> JobEnv:
    env = make("job/training", {"job": JOB})
    assert isinstance(env, JobEnv)
    return env


# Jobs ----------------------------------------------------------------------------------------------------------------


def test_time_and_money_are_the_timeline_s(env: JobEnv) -> None:
    """With constant delays, of rounds of different widths."""
    plan = [1, 4, 2, 3, 4]
    keys = jax.random.split(jax.random.key(0), 1)
    state, obs = jax.jit(env.reset)(keys)
    step = jax.jit(env.step)
    starts = jax.jit(env.starts)(jax.random.key(1))
    timeline, before = Timeline.of(env.config, 0), 0.0
    updates, learned = 0, np.asarray(state.engine.params[0])
    np.testing.assert_array_equal(obs, [[0, 0, 0, 0, 0, 0, 0, 1]])
    for k, actors in enumerate(plan[:-1], 1):
        state, time_step = step(jax.random.split(jax.random.key(k), 1), state, jnp.array([actors - 1]), starts)
        usage = timeline.next_round(actors, 2 * actors).usage  # 4 minibatches of 16 samples, 4 actors of 2 x 8
        cost = bill(env.config.system, env.config.prices, usage, 4).total
        assert float(state.seconds[0]) == pytest.approx(usage.seconds, rel=1e-5)
        assert float(env.cost(jax.tree.map(lambda x: x[0], state))) == pytest.approx(cost, rel=1e-5)
        assert float(time_step.reward[0]) == pytest.approx(-0.1 * (usage.seconds - before), rel=1e-4)
        before = usage.seconds
        updates, params = updates + 2 * actors, np.asarray(state.engine.params[0])
        assert int(state.engine.version[0]) == usage.updates == updates
        assert np.isfinite(params).all() and np.abs(params - learned).max() > 1e-3
        learned = params
        assert float(time_step.obs[0, 0]) == pytest.approx(k / 5)
        assert float(time_step.obs[0, 7]) == pytest.approx(1 - cost, rel=1e-5)
        assert not time_step.terminated[0]
    # After the last round, the shortfall to the target: 1000 less the best mean return there has been.
    best = float(state.best[0])
    state, time_step = step(jax.random.split(jax.random.key(9), 1), state, jnp.array([plan[-1] - 1]), starts)
    seconds = timeline.next_round(plan[-1], 8).usage.seconds - before
    gain = float(time_step.reward[0]) + 0.1 * seconds
    assert time_step.terminated[0] and best - 1000 - 1e-2 <= gain < best - 1000 + 100
    assert float(state.seconds[0]) == 0.0, "the next job has begun"


def test_a_job_ends_at_its_target_and_when_its_budget_is_spent() -> None:
    """To come beyond the target with too many dollars is no gain."""
    keys = jax.random.split(jax.random.key(0), 2)
    quick = ["delays.actor.seconds=0.001", "delays.learner.seconds=0.001"]
    long = ["algorithm.rollout_length=64", "total_steps=2560"]  # some episodes end in the first round
    env = make("job/training", {"job": [*JOB, *long, *quick]})
    assert isinstance(env, JobEnv)
    scales = env.scales

    @jax.jit
    def first_round(target: jax.Array, budget: jax.Array) -> TimeStep:
        """Jobs that differ in these two alone, compiled once."""
        env.scales = scales._replace(target=target, budget=budget)
        starts = state, _ = env.reset(keys)
        return env.step(keys, state, jnp.array([3, 3]), starts)[1]

    for target, budget, penalty in ((1.0, 1.0, 0.0), (1000.0, 1e-9, -1000.0), (1.0, 1e-9, 0.0)):
        time_step = first_round(target, budget)
        assert np.all(time_step.terminated)
        assert np.all(np.abs(time_step.reward - penalty) < 100)
        assert np.all(time_step.reward <= 0)


def test_every_sample_is_in_one_minibatch_of_an_epoch(env: JobEnv) -> None:
    for envs in (2, 4, 6, 8):
        order, count = env._order(jax.random.key(envs), jnp.int32(envs))
        assert int(count) == env.layout.count(envs) == envs // 2
        for epoch in np.split(np.asarray(order), 2):
            rows = np.sort(epoch[epoch >= 0])
            step, index = np.divmod(rows, 8)
            np.testing.assert_array_equal(step, np.repeat(np.arange(8), envs))
            np.testing.assert_array_equal(index, np.tile(np.arange(envs), 8))
            assert np.all(epoch[: int(count)] >= 0) and np.all(epoch[int(count) :] < 0)


@pytest.mark.slow
def test_a_job_learns_as_its_trainer_does() -> None:
    """Rounds of the environment against rounds of a trainer: the same job, other random numbers.

    That every gradient of a round is learned from is also in the first test.
    """
    job = ["env=gymnax/cartpole", "delays=constant", "scaling.target=1000", "total_steps=40_960"]
    env = make("job/training", {"job": job})
    outcome = run_jobs(env, constant(16), 6, seed=0)
    trainer = Trainer(load_config(["scaling=minionsrl", "system=minionsrl", *job, "scaling=max", "num_seeds=6"]))
    records = trainer.run()
    theirs = np.array(records[-1]["per_seed"]["train_return"])
    assert len(records) == 20 and np.all(outcome.rounds == 20)
    assert outcome.seconds[0] == pytest.approx(records[-1]["simulated_seconds"], rel=1e-3)
    spread = np.hypot(outcome.reward.std(), theirs.std()) / np.sqrt(6)
    assert abs(outcome.reward.mean() - theirs.mean()) < 4 * spread
    assert outcome.reward.mean() > 60  # it does learn


@pytest.mark.parametrize(
    ("job", "part"),
    [
        (["env=gymnax/cartpole", "system=stellaris"], "rule central"),
        (["env=gymnax/cartpole", "algorithm=impala"], "algorithm=ppo"),
        (["env=envpool/hopper", "scaling.target=1000", "platform.actors=16"], "does not run in JAX"),
        (["env=gymnax/cartpole", "scaling.budget=0"], "scaling.budget"),
    ],
)
def test_jobs_that_cannot_be_scheduled(job: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        make("job/training", {"job": job})


# Training ------------------------------------------------------------------------------------------------------------


class Phases(AutoResetEnv):
    """A job in two phases: three rounds in which one actor does as well as four, then work that actors share.

    A round of I actors takes 1 + (I - 1) / 4. The best schedule is 1, 1, 1, 4, 4, 4 and takes 8.25; always 4 takes
    10.5, always 1 takes 15.
    """

    name = "test/phases"
    observation_space = Box((8,), (0.0,) * 8, (1.0,) * 8)
    action_space = Discrete(4)
    max_episode_steps = 100

    def reset_one(self, key: Array) -> tuple[Array, Array]:
        return jnp.float32(0.0), self._obs(jnp.float32(0.0))

    def _obs(self, progress: Array) -> Array:
        return jnp.zeros(8).at[2].set(progress / 6.0).at[7].set(1.0)

    def step_one(self, key: Array, state: Array, action: Array) -> tuple[Array, Array, Array, Array, Array]:
        actors = action + 1
        progress = state + jnp.where(state < 3.0, 1.0, actors / 4.0)
        seconds = 1.0 + (actors - 1) / 4.0
        return progress, self._obs(progress), -seconds, progress >= 6.0, jnp.bool_(False)


register("test/phases", Phases)


def test_a_trained_scheduler_finds_the_best_schedule() -> None:
    """Our own PPO, with the settings of `env=job/training`, on a job whose best schedule is known.

    Of four seeds most find it: which ones hangs on the last bits, which are a machine's own.
    """
    settings_ = load_config(["env=job/training", "system=central", "total_steps=30_720", "num_seeds=4"])
    trainer = Trainer(settings_.replace({"env.name": "test/phases", "env.kwargs": {}}))
    trainer.run()
    job = Phases()

    def seconds(choose: object) -> float:
        state, obs = job.reset_one(jax.random.key(0))
        total, done = 0.0, False
        while not done:
            action = choose(obs) if callable(choose) else choose
            state, obs, reward, ended, _ = job.step_one(jax.random.key(0), state, jnp.int32(action))
            total, done = total - float(reward), bool(ended)
        return total

    generator = np.random.default_rng(0)
    policies = [policy_of(trainer, seed) for seed in trainer.seeds]
    learned = [seconds(lambda obs, policy=policy: int(policy(obs))) for policy in policies]
    assert sum(one == pytest.approx(8.25) for one in learned) >= 2 and max(learned) < 10.5, learned
    assert min(seconds(action) for action in range(4)) == 10.5
    assert max(learned) < np.mean([seconds(lambda _: generator.integers(4)) for _ in range(50)])


def test_scheduler_training_runs_jobs_to_their_end_and_goes_on_from_others() -> None:
    notes: list[str] = []
    first, env = train_scheduler(JOB, episodes=1, note=notes.append)
    assert first.actors == env.limits.maximum == 4 and "of 1 jobs" in notes[-1]
    again, _ = train_scheduler(JOB, episodes=0, start=first)
    for one, other in zip([*first.kernels, *first.biases], [*again.kernels, *again.biases], strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ConfigError, match="16 actors, the job has 4"):
        train_scheduler(JOB, episodes=1, start=scheduler(16))


def test_choices(env: JobEnv) -> None:
    outcome = run_jobs(env, random(4), 2, seed=0)
    assert np.all(outcome.rounds == 5) and np.all(outcome.dollars > 0)
    narrow, wide = (run_jobs(env, constant(n), 2, seed=0) for n in (1, 4))
    assert np.all(narrow.seconds < outcome.seconds) and np.all(outcome.seconds < wide.seconds)
    states = np.random.default_rng(0).normal(size=(5, 8))
    np.testing.assert_array_equal(scheduled(scheduler())(states, np.random.default_rng(0)), [
        scheduler()(state) for state in states
    ])  # fmt: skip


# Files and the rule --------------------------------------------------------------------------------------------------


def test_a_scheduler_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "one.npz"
    scheduler().save(path)
    loaded = Scheduler.load(path)
    for state in np.random.default_rng(1).normal(size=(50, 8)):
        assert loaded(state) == scheduler()(state)
    assert sorted(p.name for p in path.parent.iterdir()) == ["one.npz"]


def test_a_run_goes_on_with_its_own_scheduler_only(tmp_path: Path) -> None:
    rules = []
    for seed in range(2):
        path = tmp_path / f"{seed}.npz"
        scheduler(8, seed).save(path)
        options = scaling_of("minionsrl", target=1.0, budget=1.0, scheduler=str(path))
        rules.append(MinionsRL(options, Limits(8, 1, 1, (8,)), SCALES))
    rules[0].restore(rules[0].state())
    with pytest.raises(ConfigError, match=r"1\.npz is not the scheduler that the run began with"):
        rules[1].restore(rules[0].state())


def test_files_that_are_no_schedulers(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no archive")
    other = tmp_path / "other.npz"
    np.savez(other, k0=np.zeros((3, 2)), b0=np.zeros(2))
    for path, part in ((tmp_path / "none.npz", "does not exist"), (broken, "not a scheduler"), (other, "for 8 inputs")):
        with pytest.raises(ConfigError, match=part) as caught:
            Trainer(scalable("scaling=minionsrl", f"scaling.options.scheduler={path}"))
        assert str(path) in str(caught.value)


def test_the_shipped_scheduler_acts_as_its_network() -> None:
    shipped = Scheduler.load(SHIPPED)
    assert shipped.actors == 16
    states = np.random.default_rng(0).uniform(-2, 2, (200, 8)).astype(np.float32)
    x = states.astype(np.float64)
    for kernel, bias in zip(shipped.kernels[:-1], shipped.biases[:-1], strict=True):
        x = np.tanh(x @ kernel + bias)
    expected = 1 + np.argmax(x @ shipped.kernels[-1] + shipped.biases[-1], axis=1)
    assert len({*expected}) > 1 and [shipped(state) for state in states] == expected.tolist()


def test_features_are_on_the_job_s_scales() -> None:
    state = features(SCALES, SchedulerInput(5, np.e - 1, 25.0, 0.01, 2.0, 1.0, 4.0, 0.25))
    np.testing.assert_allclose(state, [0.5, 1.0, 0.25, np.log(2), 0.2, 0.1, 0.4, 0.25], rtol=1e-6)
    assert np.all(np.abs(features(SCALES, SchedulerInput(1e9, -1e30, -1e9, 1e30, 1e9, 1e9, 1e9, -1e9))) <= 5)
    traced = jax.jit(lambda x: features(SCALES, SchedulerInput(*[x] * 8), jnp))(jnp.float32(0.3))
    np.testing.assert_allclose(traced, features(SCALES, SchedulerInput(*[0.3] * 8)), rtol=1e-6)


@given(
    budget=st.floats(0.1, 5.0),
    factors=st.lists(st.floats(0.5, 1.0), max_size=60),
    fixed=st.floats(0.0, 0.5),
    price=st.floats(0.001, 0.05),
    seed=st.integers(0, 20),
    first=st.integers(1, 8),
    minimum=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_a_schedule_keeps_to_its_budget(
    budget: float, factors: list[float], fixed: float, price: float, seed: int, first: int, minimum: int
) -> None:
    """Any choice of a scheduler, and any share of its actors in a round's price.

    Later rounds are no dearer than the first, of which nothing can be known beforehand.
    """
    path = Path(__file__).parent / "nowhere.npz"
    first = max(first, minimum)
    options = scaling_of("minionsrl", target=1e9, budget=budget, actors=first, scheduler=str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "load", classmethod(lambda cls, path: scheduler(8, seed)))
        rule = MinionsRL(options, Limits(8, minimum, 1, (8,)), SCALES)
    spent, k, dearest = 0.0, 0, 0.0
    factors = [1.0, *factors]
    if fixed + first * price > budget:
        return
    while rule.actors > 0 and k < len(factors):
        cost = factors[k] * (fixed + rule.actors * price)
        spent, dearest = spent + cost, max(dearest, cost)
        k += 1
        rule.observe(seen(k, actors=rule.actors, cost_usd=spent, reward=float(k)))
        assert spent <= budget * (1 + 1e-9)
    assert rule.actors > 0 or budget - spent < dearest * 8, "ended although any round could be paid"


def test_runs_are_scheduled_and_resume(tmp_path: Path) -> None:
    settings_ = scalable("scaling=minionsrl", "checkpoint.interval=3", "scaling.target=1000", "scaling.budget=10")
    whole = Trainer(settings_)
    records = whole.run()
    assert len(records) == 6 and all(1 <= record["actors"] <= 8 for record in records)
    assert_resumes(whole, tmp_path)


@pytest.mark.parametrize(("env", "warned"), [("CartPole-v1", False), ("Catch-bsuite", True)])
def test_the_shipped_scheduler_in_another_job_is_no_secret(
    env: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (f"env=gymnax/{env}", "scaling=minionsrl", "scaling.target=1000", "scaling.budget=10", "total_steps=128")
    train(scalable(*job, f"run.dir={tmp_path / 'run'}", "evaluation.episodes=0"))
    assert ("scheduler that comes with the package" in capsys.readouterr().out) == warned
