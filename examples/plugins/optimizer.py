"""Optimizers: two of optax's, one for the vector of all parameters, one for their matrices.

stellaris-jax train plugins=[optimizer.py] algorithm.optimizer=lion algorithm.learning_rate=1e-4
stellaris-jax train plugins=[optimizer.py] algorithm.optimizer=muon algorithm.optimizer_options.steps=3
"""

import optax.contrib

import stellaris_jax as sj


@sj.register.optimizer("lion")
class Lion(sj.Optimizer):
    """Lion (Chen et al. 2023): the sign of a mean of gradients."""

    decay: float = sj.knob(0.0, "weight decay", within="[0, inf)")

    def transformation(self, hyper):
        return optax.lion(hyper.learning_rate, weight_decay=self.decay)


@sj.register.optimizer("muon")
class Muon(sj.Optimizer):
    """Muon (Jordan et al. 2024): orthogonal steps of matrices; Adam's of everything else."""

    elementwise = False  # `transformation` is given trees of matrices
    steps: int = sj.knob(5, "Newton-Schulz iterations", within="[1, 20]")

    def transformation(self, hyper):
        return optax.contrib.muon(hyper.learning_rate, ns_steps=self.steps)
