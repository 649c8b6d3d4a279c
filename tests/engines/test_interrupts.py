"""Ctrl-C ends an evaluation on a cluster of this machine, and the cluster, within seconds."""

import pytest

from tests.cli.stuck import check_an_interrupt


@pytest.mark.parametrize("stage", ["start", "update"])
def test_dask(rng, tmp_path, stage):
    assert check_an_interrupt(tmp_path, rng, "dask", stage) == ""


@pytest.mark.parametrize("stage", ["start", "update"])
def test_ray(rng, tmp_path, monkeypatch, stage):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    said = check_an_interrupt(tmp_path, rng, "ray", stage)
    assert "Traceback" not in said
