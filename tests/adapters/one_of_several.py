"""Trains as one process and saves what it began and ended with; started by test_processes.py.

python one_of_several.py FOLDER NUM_ENVS ITERATIONS
"""

import sys
from pathlib import Path

import torch

from unilab_gym.adapters import rsl_rl_train
from unilab_gym.adapters.processes import Processes
from unilab_gym.adapters.settings import TrainSettings


def main(folder: Path, num_envs: int, iterations: int) -> None:
    rank, seen = Processes.from_environment().rank, {}
    make_runner = rsl_rl_train.make_runner

    def watched(env, *arguments):
        seen["first_obs"] = env.get_observations()["policy"].clone()
        seen["runner"] = make_runner(env, *arguments)
        seen["first_weights"] = seen["runner"].alg.actor.mlp[0].weight.detach().clone()
        return seen["runner"]

    rsl_rl_train.make_runner = watched
    run = rsl_rl_train.train(
        TrainSettings(
            task="UniLab/CartPole-v0",
            backend="mujoco",
            num_envs=num_envs,
            iterations=iterations,
            seed=5,
            run_root=folder / "runs",
        )
    )
    alg = seen.pop("runner").alg
    seen["run"] = None if run is None else str(run)
    networks = (("actor", alg.actor), ("critic", alg.critic))
    seen["weights"] = {
        f"{name}.{key}": tensor
        for name, network in networks
        for key, tensor in network.state_dict().items()
    }
    seen["learning_rate"] = alg.learning_rate
    torch.save(seen, folder / f"rank_{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
