"""A token task of your own: three letters in reverse order."""

import jax
import jax.numpy as jnp

from stellaris_jax import register
from stellaris_jax.envs.suites.tokens.env import token_env
from stellaris_jax.envs.suites.tokens.task import END, TokenTask


class Reverse(TokenTask):
    """Write three letters in reverse order: `abc=` has the completion `cba` and an end."""

    name = "mine/reverse"
    characters = "abc="
    prompt_length, longest = 4, 4

    def prompt(self, key):
        letters = jax.random.randint(key, (3,), self.token("a"), self.token("c") + 1)
        return jnp.append(letters, self.token("="))

    def demonstrate(self, key, prompt):
        return jnp.append(prompt[2::-1], END)

    def verify(self, prompt, completion):
        return jnp.all(completion == self.demonstrate(None, prompt))


register.environment("mine/reverse")(token_env(Reverse))
