"""A logger: one line of a CSV file for every evaluation.

stellaris-jax train plugins=[logger.py] run.loggers=[tensorboard,csv]
"""

import stellaris_jax as sj


@sj.register.logger("csv")
class Csv(sj.Logger):
    """Writes `evaluations.csv` into the run directory; a resumed run goes on below."""

    def evaluation(self, record):
        path = self.directory / "evaluations.csv"
        head = "" if path.exists() else "env_steps,simulated_seconds,cost_usd,return\n"
        columns = ("env_steps", "simulated_seconds", "cost_usd", "eval_return_mean")
        with open(path, "a") as file:
            file.write(head + ",".join(str(record[name]) for name in columns) + "\n")
