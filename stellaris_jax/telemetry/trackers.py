"""Loggers for experiment trackers: Weights & Biases, MLflow, Trackio. Each has an extra of its name.

The trackers' own environment variables decide where they write, and whether to a server (docs/reports.md). A file
`.NAME.json` in the run directory stores the tracker's run id, and the last round that was logged. A resumed run
continues the tracker's run, and loses no points.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import refuse_links, write_atomically
from stellaris_jax.base.registry import register
from stellaris_jax.base.sqlite import check_database
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config
from stellaris_jax.telemetry.logger import Logger, RunInfo
from stellaris_jax.telemetry.names import STEP, named

FILES = ("config.yaml", "summary.json", "curve.png", "*.mp4", "*.gif")
"""Files of the run directory that are kept as artefacts when the run is over."""
TRACKER_FILES = ("wandb", "mlflow", "mlflow.db")
"""Names in the run directory that trackers write to."""
_OPENING = threading.Lock()
"""Lock held while a tracker is opened: points of a sweep may begin at once, but only one may create a database."""


class Tracker(Logger):
    """Base of all trackers. Subclasses implement `open`, `log`, `keep` and `end`."""

    connects = True
    package: ClassVar[str]
    name: ClassVar[str]
    queues: ClassVar[bool] = False
    """Whether queued values may be lost with the process.

    If so, a resumed run logs again all values since the tracker was opened, the same values at the same steps.
    """
    project: str = knob("stellaris_jax", "project (of MLflow: experiment) that a tracked run belongs to")

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield (
            find_spec(cls.package) is not None,
            f"{section}.loggers=[{cls.name}] needs {cls.package}: pip install 'stellaris-jax[{cls.name}]'.",
        )

    def __init__(self, run: RunInfo, options: dict[str, Any] | None = None):
        super().__init__(run, options)
        refuse_links(*(run.directory / name for name in TRACKER_FILES))
        self._state_path = run.directory / f".{self.name}.json"
        known = _read(self._state_path) if run.resume_round is not None else {}
        self.logged = {"round": known.get("round", -1), "evaluation": known.get("evaluation", -1)}
        self._ended = False
        with _OPENING:
            self.id = self.open(known.get("id"))
        if self.id != known.get("id"):
            self.logged = {"round": -1, "evaluation": -1}
        self._save_state(self.logged)
        self._log_new([row for row in run.history if row["kind"] == "round"])
        self._log_new([row for row in run.history if row["kind"] == "evaluation"])

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        self._log_new(rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        self._log_new([row])

    def summary(self, summary: dict[str, Any]) -> None:
        numbers = {key: value for key, value in summary.items() if _is_number(value)}
        paths = (path for form in FILES for path in sorted(self.run.directory.glob(form)))
        # In an untrusted directory, a link might lead to a private file of the user.
        self.keep(numbers, [path for path in paths if path.is_file() and not path.is_symlink()])
        self._end(finished=True)

    def close(self) -> None:
        self._end(finished=False)

    def open(self, known: str | None) -> str:
        """Begin a run of the tracker, or continue one, and return its id."""
        raise NotImplementedError

    def log(self, points: list[tuple[int, dict[str, float]]]) -> None:
        """Log values by their names, each with its env steps."""
        raise NotImplementedError

    def keep(self, numbers: dict[str, float], files: list[Path]) -> None:
        """Log the figures and files of a run that is over."""
        raise NotImplementedError

    def end(self, finished: bool) -> None:
        """End the tracker's run, as far as this process is concerned."""
        raise NotImplementedError

    def _log_new(self, rows: list[dict[str, Any]]) -> None:
        fresh = [row for row in rows if row["round"] > self.logged[row["kind"]]]
        if fresh:
            self.log([(int(row[STEP]), dict(named(row))) for row in fresh])
            self.logged[fresh[-1]["kind"]] = fresh[-1]["round"]
            if not self.queues:
                self._save_state(self.logged)

    def _save_state(self, logged: dict[str, int]) -> None:
        write_atomically(self._state_path, json.dumps({"id": self.id, **logged}) + "\n")

    def _end(self, finished: bool) -> None:
        if not self._ended:
            self._ended = True
            self.end(finished)
            self._save_state(self.logged)


def _read(path: Path) -> dict[str, Any]:
    """Stored state of a tracker; empty if it is damaged, so that a new run begins."""
    try:
        known = json.loads(inputs.read_text(path))
        valid = isinstance(known["id"], str) and all(isinstance(known[kind], int) for kind in ("round", "evaluation"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return known if valid else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@register.logger("wandb")
class Wandb(Tracker):
    """Weights & Biases; WANDB_MODE=offline writes into the run directory, for `wandb sync`."""

    package, name, queues = "wandb", "wandb", True

    def open(self, known: str | None) -> str:
        import wandb

        self.wandb = wandb.init(
            project=os.environ.get("WANDB_PROJECT", self.project),
            dir=os.environ.get("WANDB_DIR", str(self.run.directory)),
            id=known,
            name=self.run.name,
            group=self.run.group or None,
            config=self.run.config,
            resume="allow" if known else None,
            allow_val_change=True,  # some settings may change when a run is resumed
            reinit="create_new",  # the points of a sweep are runs of one process
            settings=wandb.Settings(console="off", silent=True),
        )
        self.wandb.define_metric(STEP)
        self.wandb.define_metric("*", step_metric=STEP)
        return str(self.wandb.id)

    def log(self, points: list[tuple[int, dict[str, float]]]) -> None:
        for step, values in points:
            self.wandb.log({STEP: step, **values})

    def keep(self, numbers: dict[str, float], files: list[Path]) -> None:
        import wandb

        self.wandb.summary.update({f"summary/{name}": value for name, value in numbers.items()})
        artefact = wandb.Artifact(f"run-{self.id}", type="run")
        for path in files:
            artefact.add_file(str(path))
        self.wandb.log_artifact(artefact)

    def end(self, finished: bool) -> None:
        self.wandb.finish(exit_code=0 if finished else 1)


@register.logger("mlflow")
class Mlflow(Tracker):
    """MLflow: the store of MLFLOW_TRACKING_URI, by default `mlflow.db` and `mlflow/` in the run directory.

    A database says where the artefacts of its runs go. A database in the run directory is untrusted, and its run may
    have moved. So artefacts must go below `mlflow/` in that directory, or the run continues as a new one in MLflow.
    """

    package, name = "mlflow", "mlflow"
    MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 500
    """Limits: metrics of a request, parameters of a request, and characters of a parameter's value."""

    def open(self, known: str | None) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._place = None if "MLFLOW_TRACKING_URI" in os.environ else self.run.directory / "mlflow"
        if self._place is not None:
            check_database(self.run.directory / "mlflow.db")
            inputs.check_tree(self._place, {})
        local_store = f"sqlite:///{self.run.directory / 'mlflow.db'}"
        for quiet in ("mlflow", "alembic"):  # they log every table that they create
            logging.getLogger(quiet).setLevel(logging.WARNING)
        logging.getLogger("mlflow.store").setLevel(
            logging.CRITICAL
        )  # it logs a traceback of every error that it raises
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", local_store))
        if known:
            info = self.client.get_run(known).info
            places = [info.artifact_uri, self.client.get_experiment(info.experiment_id).artifact_location]
            if all(map(self._is_local, places)):
                self.client.update_run(known, status="RUNNING")
                return known
            self.run.note(
                f"{self.run.directory / 'mlflow.db'} keeps the artefacts of this run elsewhere; it goes on in mlflow "
                f"as a new run, whose artefacts are in {self._place}"
            )
        experiment, name = self.client.get_experiment_by_name(self.project), self.project
        if experiment is not None and not self._is_local(experiment.artifact_location):
            experiment, name = None, f"{self.project}-{secrets.token_hex(4)}"
        if experiment is None:
            location = self._place.as_uri() if self._place else None
            number = self.client.create_experiment(name, artifact_location=location)
        else:
            number = experiment.experiment_id
        tags = {"group": self.run.group} if self.run.group else {}
        run_id = self.client.create_run(number, run_name=self.run.name, tags=tags).info.run_id
        params = [Param(key, str(value)[: self.LONGEST]) for key, value in self.run.config.items()]
        for first in range(0, len(params), self.MOST_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + self.MOST_PARAMS])
        return str(run_id)

    def log(self, points: list[tuple[int, dict[str, float]]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        every = [Metric(name, value, now, step) for step, values in points for name, value in values.items()]
        for first in range(0, len(every), self.MOST_METRICS):
            self.client.log_batch(self.id, metrics=every[first : first + self.MOST_METRICS])

    def keep(self, numbers: dict[str, float], files: list[Path]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        last = [Metric(f"summary/{name}", value, now, 0) for name, value in numbers.items()]
        self.client.log_batch(self.id, metrics=last)
        if self._place is None:
            for path in files:
                self.client.log_artifact(self.id, str(path))
            return
        # Use the checked location itself: the client would ask the database again, whose triggers may change it.
        location = self.client.get_run(self.id).info.artifact_uri
        if not self._is_local(location):
            raise OSError(errno.EINVAL, f"artefacts would go to {location}, outside of the run's {self._place}")
        inputs.check_tree(self._place, {})
        from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

        for path in files:
            LocalArtifactRepository(location).log_artifact(str(path))

    def _is_local(self, location: str) -> bool:
        """Whether artefacts may go to a URI: any of a server, else only below the run directory's `mlflow/`."""
        if self._place is None:
            return True
        parts = urlsplit(location)
        path = os.path.normpath(url2pathname(parts.path))
        return (
            parts[:2] == ("file", "")
            and location == Path(path).as_uri()
            and Path(path).is_relative_to(os.path.normpath(self._place))
        )

    def end(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


@register.logger("trackio")
class Trackio(Tracker):
    """Trackio, which stores its databases below TRACKIO_DIR; `trackio show` shows them."""

    package, name, queues = "trackio", "trackio", True

    def open(self, known: str | None) -> str:
        import trackio

        name = known or f"{self.run.name}-{int(time.time() * 1000):x}"
        with redirect_stdout(io.StringIO()):  # its greeting would break the display
            self.trackio = trackio.init(
                project=self.project,
                name=name,
                group=self.run.group or None,
                config=self.run.config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return name

    def log(self, points: list[tuple[int, dict[str, float]]]) -> None:
        for step, values in points:
            self.trackio.log(dict(values), step=step)

    def keep(self, numbers: dict[str, float], files: list[Path]) -> None:
        self.trackio.log({f"summary/{name}": value for name, value in numbers.items()})
        for path in files:
            self.trackio.log_artifact(path, name=path.name, type="run")

    def end(self, finished: bool) -> None:
        with redirect_stdout(io.StringIO()):
            self.trackio.finish()
