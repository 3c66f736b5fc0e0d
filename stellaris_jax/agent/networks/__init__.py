"""Policies: networks, action distributions and running normalisation."""

from stellaris_jax.agent.networks.actor_critic import ActorCritic
from stellaris_jax.agent.networks.policy_network import PolicyNetwork, policy_network

__all__ = ["ActorCritic", "PolicyNetwork", "policy_network"]
