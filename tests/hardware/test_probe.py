"""A probe reads the machine's cores, limits, memory and driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.hardware import Probe, threads_for, with_passive_threads
from tests.hardware.fakes import FakeGpu, FakeTorch, box


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "900000 100000"}, 4),
        (
            {
                "proc/self/cgroup": "0::/system.slice/fededge-agent.service\n",
                "sys/fs/cgroup/system.slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/system.slice/fededge-agent.service/cpu.max": "max 100000\n",
            },
            3,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_cores_are_those_that_the_process_may_use(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    assert box(tmp_path, FakeTorch(), files).cores == cores


def test_this_machine_has_a_core() -> None:
    assert Probe().cores >= 1


def test_a_driver_is_known_by_its_node(tmp_path: Path) -> None:
    assert box(tmp_path, FakeTorch()).driver == ""
    assert box(tmp_path, FakeTorch(), {"dev/nvidia0": ""}).driver == "unknown"


def test_a_small_computation_must_give_the_right_result(tmp_path: Path) -> None:
    assert box(tmp_path, FakeTorch(other="xpu")).failure("xpu") == ""
    broken = FakeTorch(gpus=[FakeGpu("a", (8, 6), error="first line\nsecond line")])
    assert box(tmp_path, broken).failure("cuda:0") == "first line"


def test_small_networks_train_with_one_thread() -> None:
    assert threads_for(1.6e6, 8) == 1  # LeNet
    assert threads_for(4.1e7, 8) == 8  # ResNet-20


def test_waiting_threads_sleep_unless_the_user_says_otherwise() -> None:
    assert with_passive_threads({"A": "b"}) == {"A": "b", "OMP_WAIT_POLICY": "PASSIVE"}
    assert with_passive_threads({"OMP_WAIT_POLICY": "ACTIVE"}) == {"OMP_WAIT_POLICY": "ACTIVE"}
