"""Stacks and delay lines in numbers: who moves, who forgets, who stays."""

from collections import deque

import pytest
import torch
from helpers.probe import context, ready

from unilab_gym.config import DelayCfg
from unilab_gym.errors import ConfigError
from unilab_gym.runtime.buffers import Block, DelayLine, FrameStack, Lags


def rows(*values):
    return torch.tensor([[v] for v in values], dtype=torch.bool)


def frame(source, step):
    """Every entry encodes step, row and column."""
    n, d = source.shape
    source.copy_(100.0 * step + 10.0 * torch.arange(n).unsqueeze(1) + torch.arange(d))


def test_a_stack_holds_block_after_block_oldest_first():
    ctx = context(2)
    source = ctx.zeros(3)
    stack = FrameStack(ctx, [Block(1, 3), Block(2, 2)], source, "stack")
    for step in (5, 6, 7):
        frame(source, step)
        stack.frames.copy_(stack.pushed())
    assert stack.frames[0].tolist() == [500, 600, 700, 601, 602, 701, 702]
    assert stack.frames[1].tolist() == [510, 610, 710, 611, 612, 711, 712]
    assert stack.filled()[0].tolist() == [700, 700, 700, 701, 702, 701, 702]


def test_what_goes_in_comes_out_later_each_block_by_its_latency():
    ctx = context(1)
    source, lags = ctx.zeros(3), Lags()
    lags.build(ctx, "test")
    delays = [DelayCfg(steps=n) for n in (2, 0, 1)]
    line = DelayLine(ctx, [1, 1, 1], delays, lags, [None] * 3, source)
    frame(source, 0)
    line.fill(rows(True))
    out = []
    for step in (1, 2, 3, 4):
        frame(source, step)
        line.push()
        out.append(line.delayed[0].tolist())
    assert out == [[0, 101, 2], [0, 201, 102], [100, 301, 202], [200, 401, 302]]


def test_rows_that_are_kept_or_not_masked_keep_their_frames():
    ctx = context(3)
    source, lags = ctx.zeros(1), Lags()
    lags.build(ctx, "test")
    line = DelayLine(ctx, [1], [DelayCfg(steps=1)], lags, [None], source)
    frame(source, 1)
    line.fill(rows(True, True, True))
    frame(source, 2)
    line.push(keep=rows(False, True, False))
    frame(source, 3)
    line.fill(rows(False, False, True))
    frame(source, 4)
    line.push()
    assert line.delayed.flatten().tolist() == [200, 110, 320]
    line.clear(rows(True, False, False))
    frame(source, 5)
    line.push()
    assert line.delayed.flatten().tolist() == [0, 410, 420]


def test_drawn_latencies_are_whole_in_range_and_only_the_masked_move():
    ctx = context(500)
    lags = Lags()
    wide, narrow = DelayCfg(steps=(1, 4)), DelayCfg(steps=(0, 1))
    named = (("a", wide), ("b", narrow), ("a", wide))
    assert [lags.column(ctx, name, delay, "test") for name, delay in named] == [0, 1, 0]
    lags.build(ctx, "test")
    ready(ctx)
    assert lags.reset(torch.ones(500, dtype=torch.bool))
    first = lags.steps.clone()
    assert first[:, 0].unique().tolist() == [1, 2, 3, 4]
    assert first[:, 1].unique().tolist() == [0, 1]
    assert first[:, 0].mean() == pytest.approx(2.5, abs=0.2)
    mask = torch.arange(500) % 2 == 0
    ctx.rng.start_episode(mask)
    ctx.rng.draw()
    lags.reset(mask)
    assert torch.equal(lags.steps[~mask], first[~mask])
    assert (lags.steps[mask] != first[mask]).any()
    assert not lags.advance()


def test_a_redraw_comes_every_so_many_steps():
    ctx = context(64)
    lags = Lags()
    lags.column(ctx, "slow", DelayCfg(steps=(0, 9)), "test")
    lags.column(ctx, "fast", DelayCfg(steps=(0, 9), redraw=3), "test")
    lags.build(ctx, "test")
    ready(ctx)
    lags.reset(torch.ones(64, dtype=torch.bool))
    moved = []
    for _ in range(7):
        before = lags.steps.clone()
        ctx.rng.advance()
        ctx.rng.draw()
        assert lags.advance()
        moved.append((lags.steps != before).any(0).tolist())
    assert moved == [[False, step in (3, 6)] for step in range(1, 8)]


def test_one_name_is_one_latency():
    ctx = context()
    lags = Lags()
    lags.column(ctx, "bus", DelayCfg(steps=(0, 2), shared="bus"), "policy/gyro")
    with pytest.raises(ConfigError, match=r"gravity: the shared delay 'bus' is .*policy/gyro has"):
        lags.column(ctx, "bus", DelayCfg(steps=(0, 3), shared="bus"), "policy/gravity")


@pytest.mark.parametrize("seed", range(3))
def test_a_line_is_a_queue_for_every_row(seed):
    """Against one Python queue a row: random pushes, kept rows, resets and new latencies."""
    n, widths = 5, [2, 1, 3]
    generator = torch.Generator().manual_seed(seed)
    ctx = context(n)
    source, lags = ctx.zeros(6), Lags()
    delays = [DelayCfg(steps=(0, 3)), DelayCfg(steps=2), DelayCfg(steps=(1, 2))]
    columns = [lags.column(ctx, "a", delays[0], "a"), None, lags.column(ctx, "c", delays[2], "c")]
    lags.build(ctx, "test")
    ready(ctx, seed)
    line = DelayLine(ctx, widths, delays, lags, columns, source)
    queues = [[deque(maxlen=4) for _ in widths] for _ in range(n)]

    def parts(row):
        return torch.split(source[row].clone(), widths)

    def latency(row, block):
        return 2 if block == 1 else int(lags.steps[row, columns[block]])

    for step in range(40):
        frame(source, step)
        mask = torch.rand(n, generator=generator) < (1.0 if step == 0 else 0.2)
        if step % 3 == 0:
            lags.reset(mask)
            line.read_lags()
            line.fill(mask.unsqueeze(1))
            for row in mask.nonzero().flatten().tolist():
                for queue, part in zip(queues[row], parts(row), strict=True):
                    queue.extend([part] * 4)
            ctx.rng.start_episode(mask)
            ctx.rng.draw()
            continue
        line.push(mask.unsqueeze(1))
        for row in (~mask).nonzero().flatten().tolist():
            expected = []
            for block, (queue, part) in enumerate(zip(queues[row], parts(row), strict=True)):
                queue.append(part)
                expected.append(queue[-1 - latency(row, block)])
            assert torch.equal(line.delayed[row], torch.cat(expected))
