"""Replays a policy on either backend: guard, figures, video and plots.

    python examples/replay.py                                  # the policy shipped with the package
    python examples/replay.py --run latest --backend mjwarp --episodes 16
    python examples/replay.py --run runs/.../2026-01-01_12-00-00_1 --command 0.8 0 0.3

The same as `unilab-gym play`. In a script of your own the five calls are:

    source = find_policy("latest")                        # unilab_gym.cli.policies
    target = guarded(source, "mjwarp")                    # refuses before an environment exists
    env = make(target.env, 64, backend="mjwarp", play=True)
    policy = load(source, target, env)
    report = evaluate(env, policy)
"""

import sys

from unilab_gym.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["play", *sys.argv[1:]]))
