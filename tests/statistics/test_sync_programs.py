"""The program of a large sync: what a device sends and holds does not grow with the devices."""

import json
import subprocess
import sys

from tests.statistics.sync_programs import sent_bytes


def test_a_device_sends_and_holds_a_few_times_its_state():
    meshes = [64, 1024]  # merged at once, and in two stages
    command = [sys.executable, "-m", "tests.statistics.sync_programs", *map(str, meshes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for devices, line in zip(meshes, done.stdout.splitlines(), strict=True):
        for name, each in json.loads(line).items():
            assert devices * each["state"] > 2**20, "too small to be merged in parts"
            assert each["state"] < each["sent"] <= 4 * each["state"], (devices, name, each)
            assert each["temporary"] <= 6 * each["state"], (devices, name, each)


def test_the_reading_of_programs():
    text = """
      %a.1 = (s32[3]{0}, f32[2,5]{1,0}) all-reduce-start(%x, %y), channel_id=1
      %b = u32[4,8]{1,0} all-to-all(%z), dimensions={0}
      %c = (u32[1,40]{1,0}, /*index=1*/u32[1,40]{1,0}) all-to-all(%p, %q)
      %d = f32[] add(%all-reduce.1, %b)
    """
    assert sent_bytes(text) == 2 * (12 + 40) + 128 + 320
