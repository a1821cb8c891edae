"""The public conformance suite: both engines pass, weak ones are refused, broken ones are found."""

import dataclasses

import pytest
import torch
from helpers.crate import crate_cfg

import unilab_gym
from unilab_gym.backends import create_backend
from unilab_gym.backends.base import Capabilities, FieldSlice, ReadPlan, Stage
from unilab_gym.backends.mujoco import MujocoBackend
from unilab_gym.errors import UnsupportedCapabilityError
from unilab_gym.testing import (
    CONFORMANCE_CHECKS,
    BackendConformance,
    ConformanceError,
    check_backend,
)


@pytest.fixture(scope="module")
def suites():
    """Each engine's suite, whose backend is built once."""
    built = {}

    def get(name):
        if name == "mjwarp":
            pytest.importorskip("mujoco_warp")
        if name not in built:
            built[name] = BackendConformance(lambda spec: create_backend(name, spec))
        return built[name]

    yield get
    for suite in built.values():
        suite.close()


@pytest.mark.parametrize("check", CONFORMANCE_CHECKS)
@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
def test_every_backend_conforms(suites, backend, check):
    getattr(suites(backend), check)()


def test_the_suite_names_every_duty_of_the_contract():
    duties = "build views step masked_reset reads interval model_fields faults receipts snapshot"
    for duty in (*duties.split(), "close", "two_at_once"):
        assert any(duty in name for name in CONFORMANCE_CHECKS), duty
    assert len(CONFORMANCE_CHECKS) == 18


# --- faults that it must find ---


class LeaksIntoNeighbours(MujocoBackend):
    """A reset that also touches the row after the last masked one."""

    def reset(self, payload, mask):
        return super().reset(payload, mask | mask.roll(1))


class ForgetsToCompute(MujocoBackend):
    """Reads that describe the state before the last substep."""

    def compile_reads(self, plan):
        reads = super().compile_reads(plan)
        self._step_stage = type(self._step_stage).mjSTAGE_NONE
        return reads


class IgnoresFields(MujocoBackend):
    """Takes model fields and does nothing with them."""

    def set_model_fields(self, fields, mask, level):
        for name in fields:
            self._field(name)


class StickyFaults(MujocoBackend):
    def _read_faults(self, failed):
        kept = self._faults_np.copy()
        super()._read_faults(failed)
        self._faults_np |= kept


class RepeatsReceipts(MujocoBackend):
    def _receipt(self, operation, event=None):
        return dataclasses.replace(super()._receipt(operation, event), sequence=1)


class MovesItsReads(MujocoBackend):
    def faults(self):
        return super().faults().clone()


class ForgetsTheWrench(MujocoBackend):
    def step(self, ctrl, interval):
        if interval is not None:
            interval = dataclasses.replace(interval, body_wrench=None)
        return super().step(ctrl, interval)


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (LeaksIntoNeighbours, "check_masked_reset", "another row's"),
        (ForgetsToCompute, "check_reads", "from a forward pass"),
        (IgnoresFields, "check_model_fields", "read-back|no effect"),
        (StickyFaults, "check_faults", "differs|sticks"),
        (RepeatsReceipts, "check_receipts", "numbers do not grow"),
        (MovesItsReads, "check_views", "a tensor moved"),
        (ForgetsTheWrench, "check_interval_wrench", "0 m/s gained"),
    ],
)
def test_a_seeded_fault_is_found(broken, check, message):
    suite = BackendConformance(broken)
    with pytest.raises(ConformanceError, match=message):
        getattr(suite, check)()
    suite.close()


def test_check_backend_names_the_check_that_fails():
    others = [name for name in CONFORMANCE_CHECKS if name != "check_receipts"]
    with pytest.raises(ConformanceError, match="check_receipts: numbers do not grow"):
        check_backend(RepeatsReceipts, skip=others)
    assert check_backend(MujocoBackend, skip=others) == ("check_receipts",)


# --- weaker engines: what they declare is refused, not ignored ---


WEAK = Capabilities(
    name="weak",
    device_types=("cpu",),
    model_fields=("body_mass", "geom_friction"),
    interval=("qvel_delta",),
    sensor_types=("gyro", "framequat"),
    fixed_options={"cone": ("pyramidal",), "integrator": ("euler", "implicitfast")},
    fault_containment=False,
    quaternion_order="wxyz",
)


def weak(**changes):
    """A backend class that declares less than the engine behind it can do."""
    return type("Weak", (MujocoBackend,), {"capabilities": dataclasses.replace(WEAK, **changes)})


def make(monkeypatch, folder, backend, events=None, **kwargs):
    monkeypatch.setattr(MujocoBackend, "capabilities", backend.capabilities)
    cfg = crate_cfg(folder, events, **kwargs.pop("cfg", {}))
    env = unilab_gym.make(cfg, 2, backend="mujoco", **kwargs)
    env.close()


def test_a_weak_backend_conforms_to_what_it_declares():
    """Its missing parts are not asked of it; its refusals are."""
    left_out = {"check_faults", "check_interval_wrench"}
    sensorless = {name for name in CONFORMANCE_CHECKS if name not in left_out}
    passed = check_backend(weak(sensor_types=None), skip=sensorless)
    assert set(passed) == left_out  # passed without a word: nothing was asked
    assert "check_refusals" in check_backend(
        weak(sensor_types=None), skip=set(CONFORMANCE_CHECKS) - {"check_refusals"}
    )


@pytest.mark.parametrize(
    ("changes", "cfg", "kwargs", "message"),
    [
        ({}, {}, {}, "'weak' does not contain faults.*use on_fault='raise'"),
        ({"quaternion_order": "xyzw"}, {}, {"on_fault": "raise"}, "'weak' hands out xyzw"),
        ({"sensor_types": ("gyro",)}, {}, {"on_fault": "raise"},
         "'weak' cannot evaluate sensor 'fl': kind 'touch'; available: gyro"),
        ({"fixed_options": {"cone": ("elliptic",)}}, {}, {"on_fault": "raise"},
         "'weak' cannot honour sim.cone='pyramidal', it honours 'elliptic'"),
    ],
)  # fmt: skip
def test_what_a_weak_backend_cannot_do_is_refused(
    tmp_path, monkeypatch, changes, cfg, kwargs, message
):
    with pytest.raises(UnsupportedCapabilityError, match=message):
        make(monkeypatch, tmp_path, weak(**changes), cfg=cfg, **kwargs)


def test_within_its_means_a_weak_backend_works(tmp_path, monkeypatch):
    backend = weak(sensor_types=("touch",))
    make(monkeypatch, tmp_path, backend, on_fault="raise")


def test_reads_of_other_sensors_are_no_business_of_the_check():
    suite = BackendConformance(weak(sensor_types=("gyro",)))
    gyro = suite.index.sensors["imu_gyro"]
    item = FieldSlice("sensordata", tuple(range(gyro.adr, gyro.adr + 3)), (3,), Stage.VEL)
    backend = suite.create(suite.spec())
    assert backend.compile_reads(ReadPlan((item,), (item,)))[item].shape == (5, 3)
    assert torch.equal(backend.views().qvel, torch.zeros(5, suite.index.nv))
    backend.close()
