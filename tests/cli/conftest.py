"""The reports of these tests have pictures that are cheap."""

import pytest

import datarax.evaluation.pictures


@pytest.fixture(autouse=True)
def cheap_pictures(monkeypatch):
    """Figures are made and not drawn, which takes most of the time of a small evaluation.

    tests/evaluation and tests/plot compare pictures in reports. The demo, the notebooks and each
    command in a process of its own draw them.
    """
    monkeypatch.setattr(datarax.evaluation.pictures, "svg", lambda figure: "<svg></svg>")
