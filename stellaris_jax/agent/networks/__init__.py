"""Policies: networks, action distributions and running normalisation."""

from stellaris_jax.agent.networks.actor_critic import ActorCritic
from stellaris_jax.agent.networks.policy_network import PolicyNetwork, policy_network
from stellaris_jax.agent.networks.q_network import QNetwork
from stellaris_jax.agent.networks.squashed_gaussian import SquashedGaussianTwinQ

__all__ = ["ActorCritic", "PolicyNetwork", "QNetwork", "SquashedGaussianTwinQ", "policy_network"]
