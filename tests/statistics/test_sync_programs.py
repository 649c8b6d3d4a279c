"""The program of a large sync: what a device sends and holds does not grow with the devices."""

import json
import subprocess
import sys

import pytest

from tests.statistics.sync_programs import sent_bytes


@pytest.mark.parametrize("devices", [64, 256, 1024])
def test_a_device_sends_and_holds_a_few_times_its_state(devices):
    command = [sys.executable, "-m", "tests.statistics.sync_programs", str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, each in json.loads(done.stdout.splitlines()[-1]).items():
        assert devices * each["state"] > 2**20, "too small to be merged in parts"
        assert each["state"] < each["sent"] <= 4 * each["state"], (name, each)
        assert each["temporary"] <= 6 * each["state"], (name, each)


def test_the_reading_of_programs():
    text = """
      %a.1 = (s32[3]{0}, f32[2,5]{1,0}) all-reduce-start(%x, %y), channel_id=1
      %b = u32[4,8]{1,0} all-to-all(%z), dimensions={0}
      %c = (u32[1,40]{1,0}, /*index=1*/u32[1,40]{1,0}) all-to-all(%p, %q)
      %d = f32[] add(%all-reduce.1, %b)
    """
    assert sent_bytes(text) == 2 * (12 + 40) + 128 + 320
