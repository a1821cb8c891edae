import pytest
import torch
from contract.owners import make_owner, write_robot
from torch import nn

from unilab_gym.contract import CrossBackendIncompatibleError, policy_load_dim_guard, resolve


def mlp(obs: int, hidden: int, actions: int) -> nn.Module:
    return nn.Sequential(nn.Linear(obs, hidden), nn.ELU(), nn.Linear(hidden, actions))


class Actor(nn.Module):
    def __init__(self, obs: int):
        super().__init__()
        self.obs_normalizer = nn.Module()
        self.obs_normalizer.register_buffer("_mean", torch.zeros(1, obs))
        self.mlp = mlp(obs, 8, 2)


def load(saved: nn.Module, built: nn.Module, **kwargs):
    with policy_load_dim_guard("model_10.pt", **kwargs):
        built.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (mlp(45, 8, 2), "observation width 45 in the checkpoint, 48 here"),
        (mlp(48, 8, 3), "output width 3 in the checkpoint, 2 here"),
        (mlp(48, 16, 2), "hidden width differs"),
    ],
)
def test_dimensions_are_named_and_the_cause_is_kept(saved, text):
    with pytest.raises(CrossBackendIncompatibleError, match=text) as caught:
        load(saved, mlp(48, 8, 2))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "size mismatch" in str(caught.value.__cause__)
    assert caught.value.reason == "weight_shape"
    assert "model_10.pt" in str(caught.value) and "What to do" in str(caught.value)


def test_hidden_layers_are_not_taken_for_observations():
    with pytest.raises(CrossBackendIncompatibleError) as caught:
        load(mlp(48, 16, 2), mlp(48, 8, 2))
    assert "observation width" not in str(caught.value)
    assert "output width" not in str(caught.value)


def test_a_normalizer_alone_is_an_observation_mismatch():
    saved, built = Actor(48), Actor(48)
    saved.obs_normalizer.register_buffer("_mean", torch.zeros(1, 45))
    with pytest.raises(CrossBackendIncompatibleError, match="observation width 45 in the check"):
        load(saved, built)


def test_the_target_is_described(tmp_path):
    contract = resolve(make_owner(write_robot(tmp_path)))
    with pytest.raises(CrossBackendIncompatibleError, match=r"\(policy 8, critic 3\).*2 actions"):
        load(mlp(3, 8, 2), mlp(8, 8, 2), contract=contract)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_both_error_classes_and_unknown_wordings(kind):
    error = kind("Size mismatch in actor: 45 != 48")
    with (
        pytest.raises(CrossBackendIncompatibleError, match="45 != 48") as caught,
        policy_load_dim_guard(),
    ):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError('Missing key(s) in state_dict: "0.weight". Unexpected key(s): "a"'),
        ValueError("unrelated"),
        KeyError("size mismatch"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_pass_unchanged(error):
    with pytest.raises(type(error)) as caught, policy_load_dim_guard():
        raise error
    assert caught.value is error


def test_success_changes_nothing():
    saved, built = mlp(4, 8, 2), mlp(4, 8, 2)
    load(saved, built)
    assert all(
        torch.equal(a, b) for a, b in zip(saved.parameters(), built.parameters(), strict=True)
    )


def test_nested_guards_wrap_once():
    error = RuntimeError("size mismatch")
    with (
        pytest.raises(CrossBackendIncompatibleError) as caught,
        policy_load_dim_guard("outer"),
        policy_load_dim_guard("inner"),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert "inner" in str(caught.value) and "outer" not in str(caught.value)
