"""The benchmark `operations` tells what a trace has, and finds a program's own operations in one."""

import pytest
from training import TINY

from benchmarks import operations
from benchmarks.operations import kind_of, kinds_of, rows, summarise, trace


def test_an_operation_is_what_its_name_says() -> None:
    told = {
        "dot.66": "products",
        "ynn_fusion": "products",
        "wrapped_reduce-window.27": "reductions",
        "bitcast_gather_fusion.3": "moving data",
        "select_dynamic-update-slice_fusion": "moving data",
        "add_tanh_fusion": "elementwise",
    }
    assert {name: kind_of(name) for name in told} == told


def test_a_trace_is_summed_up() -> None:
    """Medians and shares of the program's own operations; loops, which others are within, do not count."""
    events = [{"ph": "X", "name": name, "dur": dur} for name, dur in [("dot.1", 1.0), ("dot.1", 5.0), ("tanh", 2.0)]]
    others = [{"ph": "X", "name": "while.3", "dur": 99.0}, {"ph": "X", "name": "python", "dur": 9.0}, {"ph": "M"}]
    found = summarise([*events, *others], {"dot.1", "tanh", "while.3"})
    assert found == [
        {"operation": "dot.1", "kind": "products", "times": 2, "microseconds": 3.0, "share": 0.75},
        {"operation": "tanh", "kind": "elementwise", "times": 1, "microseconds": 2.0, "share": 0.25},
    ]
    table = rows([{"job": "a", "system": "b", "kinds": kinds_of(found, 2), "operations": found}])
    assert [row["share"] for row in table] == ["75%", "0%", "0%", "25%"] and table[0]["per gradient"] == "1.0"


def test_a_job_is_traced() -> None:
    """Every gradient has the products of policy and critic; the compiler's options are what they were."""
    before = dict(operations.mesh.CPU_OPTIONS)
    found = trace([*TINY, "engine.chunk_rounds=2", "system=central", "system.learners=1"])
    assert before == operations.mesh.CPU_OPTIONS
    assert found["gradients"] == 16 and found["kinds"]["products"]["per_gradient"] >= 4
    assert any(one["kind"] == "products" and one["times"] == 16 for one in found["operations"])
    assert sum(kind["share"] for kind in found["kinds"].values()) == pytest.approx(1.0)
