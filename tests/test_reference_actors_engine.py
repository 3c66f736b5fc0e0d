"""The compiled engine has the policies of the literal system of `reference_actor_training.py`: independent actors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_bench import BENCHES, ENGINE, bench, check_policies
from reference_systems import data_admissions, independent


@pytest.mark.parametrize("admission", data_admissions)
@pytest.mark.parametrize("name", BENCHES)
@settings(ENGINE, max_examples=4)
@given(data=st.data())
def test_engine_equals_literal_system(name: str, admission: str, data: st.DataObject) -> None:
    check_policies(bench(name), data.draw(independent(admission=admission)), data.draw(st.integers(0, 3)))
