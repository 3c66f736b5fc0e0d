"""Source of fragments from host environments: prefetched if actors overlap with learners, and resumable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.evaluate import HostEvaluator
from stellaris_jax.engine.host_rollout import fingerprint
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.sources.actionlog import ActionLog, ActionLogError
from stellaris_jax.sources.host_actors import Actors, Behaviour, Received
from stellaris_jax.sources.resumption import Resumption


class Ahead(NamedTuple):
    """Inputs of the next fragment, fixed before the current one has been learned from.

    Attributes:
      behaviour: policies that roll it.
      actors: `[S]`, participating actors; `None` if all always participate.
    """

    behaviour: Behaviour
    actors: list[int] | None


class HostSource:
    """Source that has actors step host environments; see `stellaris_jax.sources.source.Source`.

    Environments are opened for the first fragment and stay open. They cannot be saved, so a checkpoint has their
    actions. A resumed run opens new ones and replays the actions, as far as `checkpoint.replay` allows.

    Args:
      env, network, config, spec: environment, policy network, configuration and program spec of the run.
      seeds: one per agent.
      stopping: event that stops the run.
    """

    env = None

    def __init__(
        self,
        env: HostEnv,
        network: PolicyNetwork,
        config: Config,
        spec: ProgramSpec,
        seeds: list[int],
        stopping: threading.Event,
    ):
        self.actors = Actors(env, network, config, seeds, stopping)
        self._evaluator_arguments = (env, network, config)
        self.config, self.stopping = config, stopping
        self.steps_per_round = spec.envs * spec.steps
        self.ahead: Ahead | None = None
        self._first, self._logged = 0, False
        self._actions: list[np.ndarray] | None = []
        self._stand: np.ndarray | None = None
        self._memory: Carry = None
        self._evaluators: dict[int, HostEvaluator] = {}

    @property
    def actors_in_flight(self) -> list[int] | None:
        return None if self.ahead is None else self.ahead.actors

    def example(self, seeds: int) -> Fragment:
        return self.actors.example(seeds)

    def open(self, round_: int) -> None:
        """Open new environments, with fragment `round_` as the next one."""
        self.actors.open(round_)
        self._first, self._logged, self._memory = round_, False, self.actors.carry
        self._actions = [] if self.config.checkpoint.replay > 0 else None

    def begin_anew(self) -> None:
        """Make all environments begin new episodes with the next fragment."""
        self.actors.close()

    def receive(self, seed_states: SeedStates, chunk: Chunk, following: Following) -> Received:
        """Fragment of a round; with overlap the actors start the one after it."""
        versions = [record.behaviour_version for record in chunk.rounds[0]]
        if not self.actors.opened:
            self.open(chunk.begin)
            self._forget(seed_states)
        if not self.actors.under_way:
            behaviour = self.ahead.behaviour if self.ahead else _behaviour(versions, seed_states, chunk)
            self.actors.request(behaviour, chunk.envs)
        received = self.actors.receive()
        if self.config.env.overlap:
            # The next fragment is requested before this one is learned from, with the version at the round's beginning.
            newest = Behaviour(versions, *jax.device_get(seed_states.learned))
            self.ahead = Ahead(newest, following.actors)
            if following.envs is not None:
                self.actors.request(newest, following.envs)
        return received

    def on_learned(self, received: Received | None, chunk: Chunk) -> None:
        assert received is not None
        self._stand, self._memory = np.asarray(received.fragment.trajectory.last_obs), received.carry
        if self._actions is not None:
            self._actions += self.actors.actions(received, chunk.envs)
            if (chunk.end - self._first) * self.steps_per_round > self.config.checkpoint.replay:
                self._actions = None

    def evaluator(self, episodes: int) -> HostEvaluator:
        if episodes not in self._evaluators:
            self._evaluators[episodes] = HostEvaluator(*self._evaluator_arguments, episodes, self.stopping)
        return self._evaluators[episodes]

    def timed_rollout(self, seed_states: SeedStates) -> tuple[Callable[[], None], float]:
        behaviour = Behaviour([0] * len(self.actors.seeds), *jax.device_get(seed_states.learned))

        def run() -> None:
            self.actors.request(behaviour)
            self.actors.receive()

        if not self.actors.opened:
            self.actors.open(0)
        if self.actors.under_way:
            self.actors.receive()
        run()  # first call: compiles
        return run, 0.0

    def close(self) -> None:
        self.actors.close()
        for evaluator in self._evaluators.values():
            evaluator.close()

    # Saving --------------------------------------------------------------------------------------------------------

    def arrays(self) -> Any:
        """Parameters `[S, P]` and normalizers of the prefetched fragment's policies, and its recurrent states.

        Before the first fragment there are zeros in their place.
        """
        zeros = jax.tree.map(lambda x: np.zeros((len(self.actors.seeds), *x.shape), x.dtype), self._saved())
        behaviour = zeros[0] if self.ahead is None else self.ahead.behaviour[1:]
        return behaviour, zeros[1] if self._memory is None else self._memory

    def shapes(self, sharding: Sharding) -> Any:
        seeds = len(self.actors.seeds)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype, sharding=sharding), self._saved()
        )

    def _saved(self) -> Any:
        """Saved arrays of a seed, in their shapes and types."""
        carry = self.actors.network.initial_carry(self.config.env.num_envs)
        return self.actors.shapes if self.config.env.overlap else None, carry

    def state(self, log: ActionLog) -> dict[str, Any]:
        """Rest of the state that the next fragment depends on; appends the actions since the last call to the log."""
        mark = None
        if self._actions is None or not self._logged:  # the log's content is from before they were opened
            log.clear()
        if self._actions is not None:
            mark, self._actions = log.append(self._actions), []
            self._logged = True
        return {
            "first": self._first,
            "mark": mark,
            "stand": fingerprint(self._stand),
            "actors": self.ahead and self.ahead.actors,
            "versions": self.ahead and self.ahead.behaviour.versions,
        }

    def restore(self, state: dict[str, Any] | None, arrays: Any) -> None:
        """Restore the inputs of the next fragment. Environments are closed; `resume` restores them."""
        assert state is not None
        self.actors.close()
        behaviour, self._memory = jax.device_get(arrays)
        self.ahead = None
        if state["versions"] is not None:
            self.ahead = Ahead(Behaviour(state["versions"], *behaviour), state["actors"])

    def resume(self, at: Resumption) -> None:
        assert at.saved is not None
        try:
            if at.saved["mark"] is None:
                limit = self.config.checkpoint.replay
                raise ActionLogError(f"they began more than checkpoint.replay={limit} env steps ago")
            at.note(self._replay(at.saved, at.log))
        except ActionLogError as error:
            self.open(at.round)
            self._forget(at.seed_states)
            at.note(f"environments begin new episodes, so the run does not go on bit for bit: {error}")

    def _forget(self, seed_states: SeedStates) -> None:
        """Reset the unfinished episodes of environments that were opened anew."""
        seed_states.forget_episodes()

    def _replay(self, saved: dict[str, Any], log: ActionLog) -> str:
        """Open the environments and replay their actions; returns a sentence.

        Raises ActionLogError, with the reason, if replay is not possible; the caller then has to open new environments.
        """
        begin, seeds = time.perf_counter(), len(self.actors.seeds)
        carry = self._memory
        self.open(saved["first"])
        arrays, self._logged = log.read(saved["mark"]), True
        self.actors.replay(zip(*[arrays] * seeds, strict=True))
        self._stand = self.actors.stand()
        if saved["stand"] not in (fingerprint(self._stand), ""):
            raise ActionLogError(f"{self.actors.env.name} does not repeat itself")
        self.actors.carry = self._memory = carry
        steps = saved["mark"]["arrays"] * self.steps_per_round
        seconds = time.perf_counter() - begin
        return f"environments stand where they stood: {steps:,} env steps replayed in {seconds:.1f} s"


def _behaviour(versions: list[int], seed_states: SeedStates, chunk: Chunk) -> Behaviour:
    """Policies that roll the plan's first fragment."""
    return Behaviour(versions, *jax.device_get((seed_states.behaviour(chunk), seed_states.learned[1])))
