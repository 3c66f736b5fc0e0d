"""Values of the papers' figures, read off their vector graphics: bars exactly, curves to 1 or 2 %.

"Stellaris" (SC'24): several of its curves coincide where they should be independent, for example PPO and MinionsRL on
Humanoid. PPO on Hopper with Stellaris ends anywhere between 297 and 406, depending on the figure. So these values are
points of comparison, not targets.
"""

from __future__ import annotations

from typing import NamedTuple


class End(NamedTuple):
    """Last point of a curve and its bar, after 50 rounds.

    Attributes:
      reward: return.
      seconds: seconds.
      dollars: dollars.
    """

    reward: float
    seconds: float
    dollars: float


ENDS: dict[str, dict[str, tuple[End, End]]] = {
    "PPO": {
        "hopper": (End(230, 325, 1.00), End(297, 290, 0.74)),
        "humanoid": (End(347, 358, 1.10), End(332, 265, 0.79)),
        "walker2d": (End(203, 333, 1.00), End(298, 297, 0.80)),
        "gravitar": (End(120, 2203, 6.8), End(370, 1969, 4.7)),
        "spaceinvaders": (End(124, 1612, 4.6), End(267, 1691, 3.2)),
        "qbert": (End(92, 1484, 3.2), End(202, 1184, 2.6)),
    },
    "IMPACT": {
        "hopper": (End(216, 287, 0.90), End(286, 260, 0.68)),
        "humanoid": (End(357, 261, 0.80), End(339, 225, 0.68)),
        "walker2d": (End(172, 324, 1.00), End(284, 303, 0.88)),
        "gravitar": (End(290, 1498, 4.6), End(362, 1224, 3.2)),
        "spaceinvaders": (End(290, 1498, 4.6), End(251, 1231, 3.5)),
        "qbert": (End(170, 968, 3.0), End(338, 726, 2.2)),
    },
    "RLlib": {
        "hopper": (End(215, 302, 0.92), End(351, 264, 0.73)),
        "humanoid": (End(377, 283, 0.86), End(330, 269, 0.80)),
        "walker2d": (End(171, 304, 0.95), End(270, 270, 0.78)),
        "gravitar": (End(170, 2203, 6.8), End(265, 1894, 5.7)),
        "spaceinvaders": (End(189, 2383, 7.3), End(285, 1855, 5.1)),
        "qbert": (End(82, 1291, 4.0), End(92, 937, 2.6)),
    },
    "MinionsRL": {
        "hopper": (End(223, 293, 0.90), End(271, 233, 0.70)),
        "humanoid": (End(347, 358, 1.10), End(357, 225, 0.65)),
        "walker2d": (End(211, 326, 1.00), End(224, 248, 0.74)),
        "gravitar": (End(245, 2861, 9.0), End(255, 2203, 6.4)),
        "spaceinvaders": (End(124, 1612, 5.0), End(285, 1564, 4.7)),
        "qbert": (End(130, 1220, 3.8), End(290, 962, 3.0)),
    },
}
"""Fig. 6, 7, 9, 10 (returns, seconds) and Fig. 8 (dollars): a baseline without and with Stellaris."""

MOTIVATION = {
    "Stellaris": End(351, 264, 0.73),
    "without asynchrony": End(223, 293, 0.76),
    "without serverless": End(270, 269, 1.13),
}
"""Fig. 2: PPO on Hopper."""

LEARNERS = (2, 4, 6, 8)
LEARNING_SECONDS = {
    8: (3.0, 3.1, 3.0, 3.2),
    16: (6.5, 4.0, 3.5, 3.3),
    24: (11.0, 7.8, 5.5, 4.5),
    32: (29.9, 18.0, 9.2, 6.1),
}
UTILISATION = {8: (94, 54, 30, 16), 16: (98, 61, 55, 26), 24: (95, 69, 47, 27), 32: (96, 86, 69, 47)}
"""Fig. 3a, by number of actors and learners; utilisation in per cent."""
STALENESS_MODE, STALENESS_MAX = (1.3, 2.8, 4.3, 6.9), (6, 6, 11, 13)
"""Fig. 3b, by number of learners."""
KL_PEAK = {"asynchronous": 1.2, "synchronous": 0.35}
"""Fig. 3c: KL divergence between successive policies."""

AGGREGATION_ROUNDS = (10, 20, 30, 40, 50)
AGGREGATION = {
    "Stellaris": (233, 288, 368, 355, 406),
    "softsync": (164, 211, 249, 291, 270),
    "SSP": (194, 204, 212, 199, 181),
    "asynchronous": (63, 111, 148, 177, 172),
}
AGGREGATION_SECONDS = {"Stellaris": 287, "softsync": 302, "SSP": 325, "asynchronous": 260}
"""Fig. 11a: PPO on Hopper."""
TRUNCATION = {"with": End(406, 287, 0.75), "without": End(345, 290, 0.75)}
"""Fig. 11b; dollars are not in it, and taken from Fig. 13."""

CLUSTER = {"hopper": (End(341, 287, 3.69), End(817, 247, 3.0)), "qbert": (End(157, 1406, 18.0), End(312, 1111, 12.0))}
"""Fig. 12: PAR-RL without and with Stellaris on the HPC testbed."""

SENSITIVITY: dict[str, dict[str, tuple[float, float]]] = {
    "decay": {"0.92": (347, 1.20), "0.94": (353, 0.90), "0.96": (396, 0.75), "0.98": (378, 0.71), "1.0": (327, 0.64)},
    "root": {"1": (301, 0.62), "2": (358, 0.65), "3": (396, 0.75), "4": (377, 0.91)},
    "rho": {"0.6": (291, 0.86), "0.8": (378, 0.82), "1.0": (396, 0.75), "1.2": (386, 0.84)},
}
"""Fig. 13: return and dollars by d, v and rho; PPO on Hopper."""


NITRO_ENDS: dict[str, tuple[float, float, float]] = {
    "hopper": (1.5, 0.41, 0.30),
    "humanoid": (1.3, 0.45, 0.32),
    "walker2d": (1.4, 0.52, 0.41),
}
"""Nitro (VLDB'25), Fig. 10 and 14: PPO's final return with Nitro over that without, and dollars without and with."""
NITRO_SCALING = {"Nitro": 0.50, "MinionsRL": 0.62, "Hydrozoa": 1.00, "KungFu": 1.45}
"""Nitro, Fig. 15b: dollars of PPO on Hopper."""
NITRO_ABLATION = {
    "Nitro": End(385, 122, 0.50),
    "without boosting": End(274, 136, 0.32),
    "without serverless": End(348, 114, 1.20),
}
"""Nitro, Fig. 17: PPO on Hopper."""
NITRO_SENSITIVITY: dict[str, dict[str, tuple[float, float]]] = {
    "decay": {
        "0.93": (295, 0.14), "0.94": (324, 0.29), "0.95": (384, 0.37), "0.96": (397, 0.41),
        "0.97": (389, 0.69), "0.98": (392, 0.65), "0.99": (380, 0.77),
    },
    "window": {
        "3": (382, 0.73), "4": (358, 0.63), "5": (380, 0.73), "6": (388, 0.44),
        "7": (385, 0.44), "8": (343, 0.52), "9": (302, 0.49), "10": (277, 0.50),
    },
}  # fmt: skip
"""Nitro, Fig. 16: return and dollars of PPO on Hopper over d and n."""
NITRO_DETECTION = {"sub-sampled": 0.4, "whole batch": 5.0}
"""Nitro, §5.3: seconds of a detection."""


MINIONSRL_ENDS: dict[str, dict[str, tuple[int, float]]] = {
    "hopper": {
        "MinionsRL": (241, 1.2), "Azure ML": (277, 4.5), "IMPACT": (291, 4.6), "Adapt": (403, 4.4), "Max": (232, 1.7),
    },
    "humanoid": {"MinionsRL": (334, 1.3), "Azure ML": (464, 9.3), "IMPACT": (436, 2.9)},
    "halfcheetah": {"MinionsRL": (220, 1.1), "Azure ML": (458, 2.9), "IMPACT": (193, 3.0)},
}  # fmt: skip
"""MinionsRL (AAAI'24), Table 2: seconds and dollars of a training."""
MINIONSRL_TRAINING_HOURS = {"pre-training": "10 to 50", "fine-tuning": "1 to 4"}
"""MinionsRL, §5.5."""
