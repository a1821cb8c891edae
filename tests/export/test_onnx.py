"""ONNX export: the file computes what the policy computes, says what it means, harms nothing."""

import copy
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.actors import TASK, A, D, make_actor
from onnx import numpy_helper
from tensordict import TensorDict
from torch import nn

import unilab_gym
from unilab_gym.contract import check_replay, resolve
from unilab_gym.errors import (
    ConfigError,
    CrossBackendIncompatibleError,
    ExportError,
    ExportMismatchError,
)
from unilab_gym.export import export_policy, load_policy, rsl_rl_actor
from unilab_gym.export import onnx as onnx_export
from unilab_gym.export.metadata import csv_metadata
from unilab_gym.registration import owner_config, task_ids

REPO = Path(__file__).resolve().parents[2]

CSV_KEYS = {
    "joint_names",
    "joint_stiffness",
    "joint_damping",
    "default_joint_pos",
    "action_scale",
    "action_box",
    "command_names",
    "observation_names",
    "observation_terms_scale",
    "observation_terms_clip",
    "observation_terms_history_length",
    "observation_terms_flatten_history_dim",
    "run_path",
}


class RunningNorm(nn.Module):
    """Normalizes with statistics that it gathers in train mode."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, width))
        self.register_buffer("var", torch.ones(1, width))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, obs):
        if self.training:
            self.count += len(obs)
            rate = len(obs) / self.count
            delta = obs.mean(0, keepdim=True) - self.mean
            self.mean += rate * delta
            self.var += rate * (obs.var(0, keepdim=True, unbiased=False) - self.var)
        return (obs - self.mean) / (self.var.sqrt() + 0.01)


def make_norm():
    generator = torch.Generator().manual_seed(1)
    norm = RunningNorm(D).train()
    for _ in range(20):
        norm(3.0 + 7.0 * torch.randn(512, D, generator=generator))
    return norm


def recorded(count=1000):
    return 3.0 + 7.0 * torch.randn(count, D, generator=torch.Generator().manual_seed(2))


def torch_says(actor, norm, obs):
    actor, norm = copy.deepcopy(actor).eval(), copy.deepcopy(norm).eval()
    with torch.no_grad():
        return actor(norm(obs))


@pytest.fixture(scope="module")
def contract():
    return resolve(owner_config(TASK, "mujoco"))


@pytest.fixture(scope="module")
def exported(contract, tmp_path_factory):
    """A policy with a normalizer that saw mean 3, std 7, and its file."""
    case = SimpleNamespace(actor=make_actor(), norm=make_norm(), obs=recorded())
    path = tmp_path_factory.mktemp("export") / "run" / "policy.onnx"
    case.report = export_policy(
        case.actor,
        contract,
        path,
        normalizer=case.norm,
        observations=case.obs,
        run_path="runs/x",
    )
    case.path, case.policy = path, load_policy(path)
    return case


# --- what the file computes -----------------------------------------------------------------------


def test_the_normalizer_is_in_the_file(exported):
    wanted = torch_says(exported.actor, exported.norm, exported.obs)
    assert float((exported.policy(exported.obs) - wanted).abs().max()) <= 1e-4
    assert float((exported.norm.mean - 3.0).abs().max()) < 0.5
    with torch.no_grad():  # without the normalizer, or with a fresh one
        assert float((exported.actor(exported.obs) - wanted).abs().max()) > 0.5


def test_report_says_what_was_proved(exported):
    report = exported.report
    assert report.path == exported.path
    assert (report.obs_width, report.action_width, report.batch) == (D, A, None)
    assert report.verified
    assert (report.recorded, report.opset) == (1000, 18)
    assert report.drawn == 17  # zeros, +-10, +-1e3
    assert report.max_error <= 1e-5
    assert "dynamo" in report.exporter


def test_every_batch_size_gives_the_same_rows(exported):
    rows = exported.policy(exported.obs[:7])
    assert rows.shape == (7, A)
    assert rows.dtype == torch.float32
    for row in range(7):
        one = exported.policy(exported.obs[row : row + 1])
        torch.testing.assert_close(one, rows[row : row + 1], atol=1e-6, rtol=1e-6)


def test_one_file_is_all_there_is_and_loads_elsewhere(exported, tmp_path):
    assert [item.name for item in exported.path.parent.iterdir()] == ["policy.onnx"]
    moved = tmp_path / "empty" / "policy.onnx"
    moved.parent.mkdir()
    moved.write_bytes(exported.path.read_bytes())
    assert torch.equal(load_policy(moved)(exported.obs), exported.policy(exported.obs))
    model = onnx.load(str(moved), load_external_data=False)
    assert [item.name for item in model.graph.input] == ["obs"]
    assert [item.name for item in model.graph.output] == ["actions"]
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18}
    assert not any(item.external_data for item in model.graph.initializer)


def test_no_path_of_this_machine_is_in_the_file(exported):
    content = exported.path.read_bytes()
    for folder in (Path(torch.__file__).parent, REPO, exported.path.parent):
        assert str(folder).encode() not in content
    assert b"stack_trace" not in content


def test_static_batch_for_runtimes_without_dynamic_shapes(exported, contract, tmp_path):
    path = tmp_path / "static.onnx"
    report = export_policy(
        exported.actor, contract, path, normalizer=exported.norm, static_batch=True, opset=17
    )
    session = onnxruntime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == [1, D]
    assert session.get_outputs()[0].shape == [1, A]
    policy = load_policy(path)
    assert report.batch == policy.batch == 1
    assert report.opset == 17
    assert report.recorded == 0
    assert report.drawn == 256 + 17
    wanted = torch_says(exported.actor, exported.norm, exported.obs[:5])
    torch.testing.assert_close(policy(exported.obs[:5]), wanted, atol=1e-5, rtol=1e-5)


def test_large_actions_pass_where_only_rounding_differs(contract, tmp_path):
    """With actions near 1e2 even torch misses float64 by more than 1e-5 of an action near 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pairs = [(nn.Linear(n, m), nn.ELU()) for n, m in ((D, 256), (256, 128), (128, 64))]
        actor = nn.Sequential(*(layer for pair in pairs for layer in pair), nn.Linear(64, A))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.mul_(3.0)
    path = tmp_path / "large.onnx"
    report = export_policy(actor, contract, path, observations=recorded())
    assert report.rounding_limited > 0
    assert 1e-5 < report.max_error < 1e-3
    with torch.no_grad():
        exact = copy.deepcopy(actor).double()(recorded().double())
        torch_off = float((actor(recorded()) - exact).abs().max())
    assert float((load_policy(path)(recorded()) - exact).abs().max()) < 4 * torch_off


# --- exporting harms nothing ----------------------------------------------------------------------


def _train(norm, actor, export):
    """Two updates with sampled actions; `export` runs between them."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    norm.train()
    actor.train()
    actor[1].eval()  # a submodule whose mode differs from its parent's
    for step in range(2):
        obs = torch.randn(64, D)
        loss = (actor(norm(obs)) - torch.randn(64, A)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            export()
        optimizer.step()
    state = {**norm.state_dict(prefix="norm."), **actor.state_dict(prefix="actor.")}
    modes = [module.training for module in (*norm.modules(), *actor.modules())]
    return {key: value.clone() for key, value in state.items()}, modes


def test_exporting_in_the_middle_of_training_changes_nothing(contract, tmp_path):
    plain = _train(RunningNorm(D), make_actor(), lambda: None)
    after = (torch.rand(3), random.random(), np.random.rand())
    norm, actor = RunningNorm(D), make_actor()
    outputs = []

    def export():
        for name in ("a", "b"):
            path = tmp_path / f"{name}.onnx"
            export_policy(actor, contract, path, normalizer=norm, observations=recorded())
            outputs.append((load_policy(path)(recorded()), path.read_bytes()))

    state, modes = _train(norm, actor, export)
    assert modes == plain[1]
    assert state.keys() == plain[0].keys()
    for key, value in state.items():
        assert torch.equal(value, plain[0][key]), key
    again = (torch.rand(3), random.random(), np.random.rand())
    assert torch.equal(after[0], again[0])
    assert after[1:] == again[1:]
    assert all(p.requires_grad and p.grad is not None for p in actor.parameters())
    (first, first_bytes), (second, second_bytes) = outputs
    assert torch.equal(first, second)
    assert first_bytes == second_bytes


def test_without_onnxruntime_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="runs on onnxruntime: pip install onnxruntime"):
        load_policy(tmp_path / "policy.onnx")


def test_it_is_quiet(exported, contract, tmp_path, capfd, caplog):
    caplog.set_level(logging.INFO)
    export_policy(exported.actor, contract, tmp_path / "quiet.onnx", verify=True)
    with pytest.raises(CrossBackendIncompatibleError):
        load_policy(_written(tmp_path / "broken.onnx", b"garbage"))
    assert capfd.readouterr() == ("", "")
    assert not [item for item in caplog.records if item.levelno >= logging.WARNING]
    assert logging.getLogger("torch.onnx").level != logging.CRITICAL


def test_it_is_quiet_in_a_fresh_process(tmp_path):
    """The first export of a process loads the exporter, which has much to say."""
    script = (
        "import torch\n"
        "from unilab_gym.contract import resolve\n"
        "from unilab_gym.export import export_policy\n"
        "from unilab_gym.registration import owner_config\n"
        f"contract = resolve(owner_config({TASK!r}, 'mujoco'))\n"
        "export_policy(torch.nn.Linear(49, 12), contract, 'fresh.onnx')\n"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [item.name for item in tmp_path.iterdir()] == ["fresh.onnx"]


# --- what the file says ---------------------------------------------------------------------------


def test_metadata_is_complete(exported, contract):
    metadata = {entry.key: entry.value for entry in onnx.load(str(exported.path)).metadata_props}
    assert metadata == exported.policy.metadata
    assert set(metadata) == CSV_KEYS | {"unilab_gym", "opset"}
    assert json.loads(metadata["unilab_gym"]) == contract == exported.policy.contract
    assert metadata["run_path"] == "runs/x"
    assert metadata["opset"] == "18"
    assert metadata["joint_names"].split(",") == contract["actions"]["joints"]
    for key, values in (
        ("joint_stiffness", [35.0] * A),
        ("joint_damping", [0.5] * A),
        ("default_joint_pos", [0.0, 0.8, -1.5] * 2 + [0.0, 1.0, -1.5] * 2),
        ("action_scale", [0.25] * A),
        ("action_box", [4.0] * A),
    ):
        assert [float(text) for text in metadata[key].split(",")] == values, key
    assert metadata["command_names"] == "twist,gait"
    names = "base_ang_vel,projected_gravity,joint_pos_rel,joint_vel,last_action,command,gait_phase"
    assert metadata["observation_names"] == names
    assert metadata["observation_terms_scale"] == ",".join(["1.0"] * 7)
    assert metadata["observation_terms_clip"] == ",".join(["-inf;inf"] * 7)
    assert metadata["observation_terms_history_length"] == ",".join("0" * 7)
    assert metadata["observation_terms_flatten_history_dim"] == ",".join("1" * 7)


def test_metadata_follows_the_columns_of_the_action(contract):
    """Values that differ per joint encode their joint; the action takes the joints backwards."""
    contract = copy.deepcopy(contract)
    joints, actions = contract["joints"], contract["actions"]
    for key, base in (("kp", 10.0), ("kd", 20.0), ("default", 30.0)):
        joints[key] = [base + i / 3 for i in range(A)]
    actions["joints"] = joints["names"][::-1]
    actions["box"] = [None, *actions["box"][1:]]
    (first, second, *_) = contract["observations"]["policy"]["terms"]
    first.update(scale=[0.1, 0.2, 0.3], clip=[-5.0, None], history=5)
    second.update(scale=[2.0, 2.0, 2.0])
    metadata = csv_metadata(contract)
    for key, name in (
        ("joint_stiffness", "kp"),
        ("joint_damping", "kd"),
        ("default_joint_pos", "default"),
    ):
        assert [float(text) for text in metadata[key].split(",")] == joints[name][::-1]
    assert metadata["action_box"].split(",")[:2] == ["inf", "4.0"]
    assert metadata["observation_terms_scale"].split(",")[:3] == ["0.1;0.2;0.3", "2.0", "1.0"]
    assert metadata["observation_terms_clip"].split(",")[:2] == ["-5.0;inf", "-inf;inf"]
    assert metadata["observation_terms_history_length"].split(",")[:2] == ["5", "0"]


@pytest.mark.parametrize("task", task_ids())
def test_every_task_says_what_a_replay_needs_joint_by_joint(task):
    """E31: against the compiled model; gains that differ per joint line up by name."""
    contract = resolve(owner_config(task, "mujoco"))
    metadata = {key: text.split(",") for key, text in csv_metadata(contract).items()}
    assert set(metadata) | {"run_path"} == CSV_KEYS
    env = unilab_gym.make(owner_config(task, "mujoco").env, 1, backend="mujoco")
    model, terms = env.runtime.backend.model, contract["observations"]["policy"]["terms"]
    env.close()
    for column, joint in enumerate(metadata["joint_names"]):
        actuator = int(np.flatnonzero(model.actuator_trnid[:, 0] == model.joint(joint).id)[0])
        assert model.actuator(actuator).name == contract["actions"]["actuators"][column]
        kp, kd = (float(metadata[f"joint_{key}"][column]) for key in ("stiffness", "damping"))
        if kp:  # else a motor, whose action is no target
            assert model.actuator_gainprm[actuator, 0] == pytest.approx(kp)
            assert -model.actuator_biasprm[actuator, 2] == pytest.approx(kd)
        default = float(metadata["default_joint_pos"][column])
        assert contract["joints"]["default"][contract["joints"]["names"].index(joint)] == default
    assert metadata["observation_names"] == [term["name"] for term in terms]
    assert len(metadata["action_scale"]) == len(metadata["action_box"]) == model.nu
    assert "raw" in contract["conventions"]["action"] and contract["control_dt"] > 0


def test_the_guard_reads_the_file(exported):
    report = check_replay(exported.path, owner_config(TASK, "mjwarp"))
    assert report.ok
    assert not report.warned


# --- refusals -------------------------------------------------------------------------------------


def _written(path, content):
    path.write_bytes(content)
    return path


def _perturbed(convert):
    def wrong(*args):
        model = convert(*args)
        weight = model.graph.initializer[0]
        values = numpy_helper.to_array(weight).copy()
        values.flat[0] += 0.01
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        return model

    return wrong


def test_a_wrong_export_leaves_no_file(contract, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "convert", _perturbed(onnx_export.convert))
    path = tmp_path / "new" / "policy.onnx"
    with pytest.raises(ExportMismatchError, match=r"torch .*, onnxruntime .*Nothing was written"):
        export_policy(make_actor(), contract, path, observations=recorded())
    assert not list(path.parent.iterdir())
    _written(path, b"old")
    with pytest.raises(ExportMismatchError, match=r"worst at (FL|FR|RL|RR)_"):
        export_policy(make_actor(), contract, path)
    assert [item.name for item in path.parent.iterdir()] == ["policy.onnx"]
    assert path.read_bytes() == b"old"
    report = export_policy(make_actor(), contract, path, verify=False)
    assert not report.verified
    assert (report.recorded, report.drawn, report.max_error) == (0, 0, None)
    assert load_policy(path).action_width == A


class _Sampling(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(D, A)

    def forward(self, obs):
        mean = self.mean(obs)
        return mean + torch.randn_like(mean)


class _NotFinite(nn.Linear):
    def forward(self, obs):
        return super().forward(obs) / 0.0


@pytest.mark.parametrize(
    ("actor", "message"),
    [(_Sampling(), "export its mean"), (_NotFinite(D, A), "not finite")],
    ids=["samples", "not finite"],
)
def test_actors_that_are_no_function_of_the_observation(actor, message, contract, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_policy(actor, contract, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_the_contract_is_refused(contract, tmp_path):
    path = tmp_path / "policy.onnx"
    with pytest.raises(ConfigError, match=r"\[B, 49\] \(base_ang_vel 3, .*gait_phase 4\)"):
        export_policy(make_actor(width=48), contract, path)
    with pytest.raises(ConfigError, match=r"\[B, 12\] .* gives \[2, 11\]"):
        export_policy(nn.Linear(D, 11), contract, path)
    with pytest.raises(ConfigError, match=r"observations must have shape \[K, 49\], got \[5, 48\]"):
        export_policy(make_actor(), contract, path, observations=torch.zeros(5, 48))
    with pytest.raises(ConfigError, match="not finite"):
        export_policy(make_actor(), contract, path, observations=torch.full((5, D), torch.nan))
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        export_policy(make_actor(), contract, tmp_path / "policy.pt")
    with pytest.raises(ConfigError, match="live environment, got int"):
        export_policy(make_actor(), 3, path)
    with pytest.raises(CrossBackendIncompatibleError, match="unknown_schema"):
        export_policy(make_actor(), contract | {"schema": "other/9"}, path)
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(contract, tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=r'pip install "unilab_gym\[export\]"'):
                export_policy(make_actor(), contract, tmp_path / "policy.onnx")


def test_loading_needs_neither_onnx_nor_an_engine(exported):
    script = (
        "import sys, torch\n"
        "for name in ('onnx', 'onnxscript', 'mujoco', 'warp'): sys.modules[name] = None\n"
        "from unilab_gym.export import load_policy\n"
        f"print(tuple(load_policy({str(exported.path)!r})(torch.zeros(3, {D})).shape))\n"
    )
    environment = {"PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"(3, {A})\n", done.stderr


def test_a_wrong_width_is_told_with_the_layout(exported):
    with pytest.raises(ConfigError, match=r"\[B, 49\] \(base_ang_vel 3, .*, got \[4, 48\]"):
        exported.policy(torch.zeros(4, 48))
    with pytest.raises(ConfigError, match=r"got \[49\]"):
        exported.policy(torch.zeros(49))


def test_files_that_are_no_policy_are_refused(exported, contract, tmp_path):
    def reason(path):
        with pytest.raises(CrossBackendIncompatibleError) as caught:
            load_policy(path)
        assert str(path) in str(caught.value)
        return caught.value.reason

    content = exported.path.read_bytes()
    assert reason(tmp_path / "absent.onnx") == "missing"
    assert reason(tmp_path) == "not_a_file"
    assert reason(_written(tmp_path / "empty.onnx", b"")) == "unreadable"
    assert reason(_written(tmp_path / "garbage.onnx", b"\x00garbage" * 99)) == "unreadable"
    assert reason(_written(tmp_path / "cut.onnx", content[: len(content) // 2])) == "unreadable"
    model = onnx.load(str(exported.path))
    del model.metadata_props[:]
    assert reason(_written(tmp_path / "bare.onnx", model.SerializeToString())) == "no_snapshot"
    model.metadata_props.add(key="unilab_gym", value='{"schema": ')
    assert reason(_written(tmp_path / "torn.onnx", model.SerializeToString())) == "invalid_json"


# --- rsl_rl ---------------------------------------------------------------------------------------


def _rsl_rl_model():
    from rsl_rl.models import MLPModel

    groups = TensorDict({"policy": torch.zeros(2, D), "critic": torch.zeros(2, 60)}, [2])
    model = MLPModel(
        groups,
        {"actor": ["policy"], "critic": ["critic"]},
        "actor",
        A,
        hidden_dims=(32, 16),
        obs_normalization=True,
        distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0},
    )
    for obs in recorded(2000).split(100):
        model.update_normalization(TensorDict({"policy": obs}, [100]))
    return model


def test_an_rsl_rl_runner_exports_its_mean_and_its_normalizer(contract, tmp_path):
    model = _rsl_rl_model().train()
    obs = recorded()
    groups = TensorDict({"policy": obs}, [len(obs)])
    model(groups, stochastic_output=True)  # the model now holds a distribution with gradients
    runner = SimpleNamespace(alg=SimpleNamespace(get_policy=lambda: model))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = tmp_path / "policy.onnx"
    export_policy(rsl_rl_actor(runner), contract, path, observations=obs)
    with torch.no_grad():
        wanted = model(groups)
        assert float((model.mlp(obs) - wanted).abs().max()) > 0.1  # without the normalizer
    assert float((load_policy(path)(obs) - wanted).abs().max()) <= 1e-4
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(rsl_rl_actor(model)(obs), rsl_rl_actor(runner)(obs))
    with pytest.raises(ConfigError, match="rsl_rl runner, algorithm or model"):
        rsl_rl_actor(nn.Linear(2, 2))
