"""Ctrl-C ends an evaluation on a cluster of this machine, and the cluster, within seconds."""

import pytest

from tests.cli.stuck import check_an_interrupt


@pytest.mark.parametrize("stage", ["start", "update"])
def test_dask(rng, tmp_path, stage):
    said = check_an_interrupt(tmp_path, rng, "dask", stage)
    if stage == "start":  # it does not wait for a worker that starts, and Python may say so
        assert "Traceback" not in said
    else:
        assert said == ""


@pytest.mark.parametrize("stage", ["start", "update"])
def test_ray(rng, tmp_path, monkeypatch, stage):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    said = check_an_interrupt(tmp_path, rng, "ray", stage)
    assert "Traceback" not in said
