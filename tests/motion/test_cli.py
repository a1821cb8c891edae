"""`unilab-gym motion`: what people type (N11)."""

import json
import warnings

import numpy as np
import pytest
from helpers.motion import arrays, g1, swaying, write_clip

from unilab_gym.cli import main
from unilab_gym.motion.clip import load_clip


def test_check_prints_what_a_file_holds(tmp_path, capsys):
    assert main(["motion", "check", "squat"]) == 0
    text = capsys.readouterr().out
    assert "401 frames at 50 fps, 8.00 s" in text and "29 joints: left_hip_pitch_joint" in text
    assert "30 bodies: pelvis" in text and "ok" in text
    path = write_clip(tmp_path, 30)
    assert main(["motion", "check", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["frames"], facts["fps"]) == (True, 30, 50.0)
    assert facts["bodies"] == list(g1().body_names) and facts["off_m"] < 1e-3


def test_check_says_what_is_wrong(tmp_path, capsys):
    path = write_clip(tmp_path)
    data = arrays(path)
    del data["body_quat_w"]
    np.savez(path, **data)
    assert main(["motion", "check", str(path)]) == 1
    assert "refused: " in (text := capsys.readouterr().out) and "missing body_quat_w" in text
    assert main(["motion", "check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_convert_and_make_write_files(tmp_path, capsys):
    rows = swaying(40, 30.0)
    rows[:, 3:7] = np.roll(rows[:, 3:7], -1, axis=1)
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",")
    out = tmp_path / "a.npz"
    assert main(["motion", "convert", str(tmp_path / "a.csv"), str(out)]) == 0
    assert load_clip(out, robot=g1()).fps == 30.0
    made = tmp_path / "wave.npz"
    assert main(["motion", "make", "weight_shift", str(made)]) == 0
    assert load_clip(made, robot=g1()).frames == 451
    assert "451 frames" in capsys.readouterr().out


def test_convert_warns_of_every_joint_beyond_its_range(tmp_path, capsys):
    rows = swaying(40, 30.0)
    rows[:, 3:7] = np.roll(rows[:, 3:7], -1, axis=1)
    names = g1().joint_names
    rows[7, 7 + names.index("left_knee_joint")] = 5.0
    rows[9, 7 + names.index("right_elbow_joint")] = -5.0
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",")
    out = tmp_path / "a.npz"
    assert main(["motion", "convert", str(tmp_path / "a.csv"), str(out)]) == 0
    text = capsys.readouterr().err
    assert text.startswith(f"warning: {out} will be refused: right_elbow_joint is ")
    assert "at frame 9; left_knee_joint is" in text and text.rstrip().endswith("at frame 7")
    assert main(["motion", "check", str(out)]) == 1


def test_help_has_a_line_for_each_use(capsys):
    with pytest.raises(SystemExit):
        main(["motion", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for action in ("check", "convert", "view", "make"):
        assert sum(line.startswith(f"- motion {action} ") for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "a.csv"], "motion convert takes two files"),
        (["make", "squat", "squat.txt"], "a motion file ends in .npz"),
        (["make", "sqat", "x.npz"], "no motion 'sqat'; did you mean 'squat'"),
        (["view", "sqat"], "no packaged motion 'sqat'"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["motion", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_view_draws_a_video(tmp_path, capsys):
    from unilab_gym.render import gl_available

    if gl_available() is None:
        pytest.skip("no GL library")
    imageio = pytest.importorskip("imageio.v2")
    path, out = write_clip(tmp_path, 5), tmp_path / "sway.mp4"
    assert main(["motion", "view", str(path), str(out)]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # imageio 2.38 leaves its pipes open
        with imageio.get_reader(out, format="FFMPEG") as reader:
            assert len(list(reader.iter_data())) == 5
