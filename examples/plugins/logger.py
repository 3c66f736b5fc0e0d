"""A logger: one line of a text file for every evaluation.

stellaris-jax train plugins=[logger.py] run.loggers=[tensorboard,progress]
"""

import stellaris_jax as sj


@sj.register.logger("progress")
class Progress(sj.Logger):
    """Writes `progress.txt` into the run directory; a resumed run goes on below."""

    digits: int = sj.knob(1, "digits of a return after the point", within="[0, 9]")

    def evaluation(self, record):
        with open(self.run.directory / "progress.txt", "a") as file:
            file.write(f"{record['env_steps']} steps: {record['eval_return_mean']:.{self.digits}f}\n")
