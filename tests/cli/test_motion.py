"""motion convert, check and make."""

import numpy as np
import pytest

from unilab_gym.motion.clip import packaged_motions


@pytest.mark.parametrize("name", packaged_motions())
def test_the_packaged_motions_fit_their_robot(cli, name):
    data = cli("motion", "check", name, "--json").data
    assert (data["robot"], len(data["joints"]), data["license"]) == ("g1", 29, "Apache-2.0")
    assert data["worst_distance_m"] < 1e-3
    assert data["seconds"] == pytest.approx((data["frames"] - 1) / data["fps"])


def test_a_csv_becomes_a_file_that_is_found_right(cli, tmp_path):
    from unilab_gym.motion.clip import RobotKinematics

    stand = RobotKinematics("g1").model.key("stand").qpos.copy()
    rows = np.tile(stand, (4, 1))
    rows[:, 3:7] = np.roll(rows[:, 3:7], -1, axis=1)  # xyzw in the CSV
    np.savetxt(tmp_path / "in.csv", rows, delimiter=",")
    said = cli("motion", "convert", tmp_path / "in.csv", tmp_path / "out.npz", "--fps", "50")
    assert "4 frames at 50 Hz (0.06 s), 29 joints, 30 bodies, licence not said" in said.out
    assert "fits g1; 4 frames" in cli("motion", "check", tmp_path / "out.npz").out


def test_what_is_wrong_is_one_line(cli, tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"garbage")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "evil.npz", fps=np.array([object()], dtype=object))
    for arguments, words in (
        (["check", "sqat"], "did you mean 'squat'"),
        (["check", tmp_path / "bad.npz"], "bad.npz"),
        (["check", tmp_path / "evil.npz"], "evil.npz"),
        (["convert", tmp_path / "bad.csv", tmp_path / "o.npz"], "numbers without a header"),
        (["make", "jump", tmp_path / "o.npz"], "no motion 'jump'"),
    ):
        said = cli("motion", *arguments, code=1)
        assert said.err.startswith("error: ") and words in said.err
    assert not (tmp_path / "o.npz").exists()
    cli("motion", code=2)


def test_make_writes_what_ships(cli, tmp_path):
    said = cli("motion", "make", "weight_shift", tmp_path / "w.npz")
    assert "29 joints" in said.out
    assert cli("motion", "check", tmp_path / "w.npz", "--json").data["frames"] > 10
