"""A cart keeps a pole upright: the whole of a task on one page, to read and to copy.

`docs/write-a-task.md` walks through it. A term is a function of the frame that declares what it
reads; a config names terms and their parameters; `owner` puts environment and learner together.
"""

from __future__ import annotations

from torch import Tensor

from unilab_gym.backends.base import TensorResetRandomizationPayload
from unilab_gym.config import (
    ActionTermCfg,
    AlgoCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    NetworkCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    OwnerCfg,
    RewardTermCfg,
    SceneCfg,
    SimCfg,
    TerminationTermCfg,
    TrainingCfg,
)
from unilab_gym.mdp import actions, observations, rewards, terminations
from unilab_gym.registration import Outcome, Task
from unilab_gym.runtime.event_term import ResetEvent
from unilab_gym.runtime.reads import JointPos
from unilab_gym.runtime.term import BuildContext, TermFrame, term

ID = "UniLab/CartPole-v0"
CART, POLE = ("slider",), ("hinge",)


@term(reads=(JointPos(POLE),))
def upright(frame: TermFrame) -> Tensor:  # [N]
    """Cosine of the pole's angle: 1 where it stands. Unitless."""
    return frame[JointPos(POLE)][:, 0].cos()


@term(reads=lambda p: (JointPos(p["joints"]),))
def out_of_range(frame: TermFrame, *, joints: tuple[str, ...], limit: float) -> Tensor:  # [N] bool
    """True where a joint is more than `limit` (rad or m) from 0."""
    return (frame[JointPos(joints)].abs() > limit).any(-1)


class RandomStart(ResetEvent):
    """Cart (m) and pole (rad) start within +- these ranges of 0, at rest."""

    def __init__(self, ctx: BuildContext, *, cart: float, pole: float) -> None:
        """Asks for two numbers per environment and reset."""
        self._draw = ctx.uniform(2, "reset", (-cart, -pole), (cart, pole))

    def apply(self, payload: TensorResetRandomizationPayload) -> None:
        """Writes the positions at full width; velocities are 0 by default."""
        payload.qpos.copy_(self._draw())


def env_cfg() -> EnvCfg:
    """The environment: 50 Hz, episodes of ten seconds."""
    sees = {
        "joint_pos": ObservationTermCfg(func=observations.joint_pos_rel),
        "joint_vel": ObservationTermCfg(func=observations.joint_vel, scale=0.2),
    }
    return EnvCfg(
        scene=SceneCfg(robot="robots/cartpole/cartpole.xml"),
        sim=SimCfg(iterations=4, ls_iterations=8),
        sim_dt=0.01,
        ctrl_dt=0.02,
        episode_length_s=10.0,
        actions={
            "cart": ActionTermCfg(
                func=actions.JointEffortAction, params={"joints": CART, "scale": 10.0}
            )
        },
        observations={"policy": ObservationGroupCfg(terms=sees)},
        rewards={
            "upright": RewardTermCfg(func=upright, weight=1.0),
            "centred": RewardTermCfg(
                func=rewards.joint_deviation_l1, weight=-0.3, params={"joints": CART}
            ),
            "action_rate": RewardTermCfg(func=rewards.action_rate_l2, weight=-0.1),
        },
        terminations={
            "time_out": TerminationTermCfg(func=terminations.TimeOut, time_out=True),
            "fallen": TerminationTermCfg(func=out_of_range, params={"joints": POLE, "limit": 0.5}),
            "off_rail": TerminationTermCfg(
                func=out_of_range, params={"joints": CART, "limit": 2.2}
            ),
        },
        events={
            "start": EventTermCfg(
                func=RandomStart, mode="reset", in_play=True, params={"cart": 0.5, "pole": 0.2}
            )
        },
        metrics={
            "pole_angle": MetricTermCfg(func=rewards.joint_deviation_l1, params={"joints": POLE}),
            "cart_offset": MetricTermCfg(func=rewards.joint_deviation_l1, params={"joints": CART}),
        },
    )


def algo_cfg() -> AlgoCfg:
    """PPO of rsl_rl with a small network."""
    network = NetworkCfg(hidden_dims=(32, 32), activation="elu", obs_normalization=False)
    return AlgoCfg(
        library="rsl_rl",
        actor=network,
        critic=network,
        hyper={
            "num_steps_per_env": 32,
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "init_std": 0.6,
            "entropy_coef": 0.0,
            "learning_rate": 1.0e-3,
            "schedule": "adaptive",
            "desired_kl": 0.02,
            "gamma": 0.98,
            "lam": 0.95,
        },
    )


def owner(backend: str) -> OwnerCfg:
    """The task's configuration; the same on both backends."""
    return OwnerCfg(
        task=ID,
        env=env_cfg(),
        algo=algo_cfg(),
        training=TrainingCfg(sim_backend=backend, num_envs=128, iterations=60, seed=1),
    )


TASK = Task(
    id=ID,
    backends=("mujoco", "mjwarp"),
    owner=owner,
    outcome=Outcome(at_most={"pole_angle": 0.05, "cart_offset": 0.25}, at_least={"survival": 0.95}),
    summary="A cart keeps a pole upright (1 action, 4 observations): the tutorial task",
)
