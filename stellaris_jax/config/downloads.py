"""Environments that download their models: robots of playground whose models are not on disk."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

SUITE = "playground"
SHIPPED = re.compile(
    r"acrobot|ballincup|cartpole|cheetah|finger|fish|hopper|humanoid|pendulum|pointmass|reacher|swimmer|walker"
)
"""Pattern of the tasks of the DM control suite, whose models ship with playground. Others need a download."""
MODELS = Path("external_deps", "mujoco_menagerie")
"""Folder of models within playground's. Playground clones them from GitHub where the folder is missing."""


def downloads(name: str) -> bool:
    """Whether making the environment `suite/name` (loose spelling allowed) downloads models. Imports nothing."""
    suite, _, task = (re.sub(r"[\W_]", "", part.lower()) for part in name.partition("/"))
    if suite != SUITE or SHIPPED.match(task):
        return False
    spec = find_spec("mujoco_playground")
    places = (spec.submodule_search_locations if spec else None) or []
    return not any((Path(place) / MODELS).exists() for place in places)
