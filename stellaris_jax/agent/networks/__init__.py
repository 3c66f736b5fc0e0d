"""Actor-critic networks, action distributions and running normalisation."""

from stellaris_jax.agent.networks.actor_critic import ActorCritic

__all__ = ["ActorCritic"]
