"""Row masks in their cheap forms, and sums whose order does not depend on the number of rows."""

import pytest
import torch

from unilab_gym.runtime.rows import Cut, PairSum, RowMask, copy_each, zero_columns


def test_a_mask_clears_rows_whatever_they_hold():
    mask = RowMask(torch.tensor([True, False, True, False]))
    values = torch.tensor([[torch.nan, -1.5, torch.inf, -0.0], [1.0, torch.nan, 2.0, -torch.inf]])
    before = values.clone()
    values.view(torch.int32).bitwise_and_(mask.kept)
    assert values[:, [0, 2]].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    same = values[:, [1, 3]].view(torch.int32) == before[:, [1, 3]].view(torch.int32)
    assert same.all()  # NaN, -0 and all: bit by bit


def test_a_mask_picks_rows_out_of_two_blocks_and_follows_its_rows():
    rows = torch.zeros(3, dtype=torch.bool)
    mask = RowMask(rows)
    blocks = torch.arange(6.0).unsqueeze(1)
    assert blocks.index_select(0, mask.index).flatten().tolist() == [3.0, 4.0, 5.0]
    rows[1] = True
    addresses = mask.kept.data_ptr(), mask.index.data_ptr()
    assert mask.refresh() is mask
    assert blocks.index_select(0, mask.index).flatten().tolist() == [3.0, 1.0, 5.0]
    assert mask.kept.tolist() == [-1, 0, -1]
    assert mask.column.shape == (3, 1)
    assert (mask.kept.data_ptr(), mask.index.data_ptr()) == addresses


@pytest.mark.parametrize("width", range(14))
def test_pairwise_sums_are_sums_and_do_not_depend_on_the_number_of_rows(width):
    generator = torch.Generator().manual_seed(width)
    columns = torch.randn((width, 65), generator=generator)
    sums = {}
    for count in (1, 2, 3, 5, 8, 17, 32, 63, 65):
        memory = zero_columns(count, width, columns.device).copy_(columns[:, :count])
        out, scratch = torch.full((count,), torch.nan), torch.empty(width // 2, count)
        total = PairSum(memory, out, scratch)
        for _ in range(2):  # a second call finds what the first one left
            assert total() is out
        assert torch.equal(memory, columns[:, :count])
        torch.testing.assert_close(out, columns[:, :count].double().sum(0).float())
        sums[count] = out
    assert all(torch.equal(out, sums[65][: len(out)]) for out in sums.values())


def test_views_are_cut_once_for_a_tensor_and_anew_for_another():
    """As a moved range gives them: a new tensor in each step, often in the memory of the last."""
    cuts = []
    cut = Cut(lambda whole: (cuts.append(whole), (whole[:, :1], whole[:, 1:]))[1])
    kept = torch.tensor([[1.0, 2.0, 3.0]])
    assert cut(kept)[1] is cut(kept)[1] and len(cuts) == 1
    kept.add_(1.0)
    assert cut(kept)[1].tolist() == [[3.0, 4.0]]  # views follow what is written
    for number in range(4):
        first, rest = cut(torch.full((1, 3), float(number)))
        assert first.item() == number and rest.tolist() == [[number, number]]
    assert len(cuts) == 5


def test_copies_convert_and_follow_any_layout():
    target = torch.zeros(3, 6)
    flags = torch.tensor([[True, False], [False, False], [True, True]])
    sources = [torch.arange(6.0).view(2, 3).t(), flags, torch.tensor([7, 8, 9])]
    copy_each([target[:, 1:3], target[:, 3:5], target[:, 5]], sources)
    assert target.tolist() == [
        [0.0, 0.0, 3.0, 1.0, 0.0, 7.0],
        [0.0, 1.0, 4.0, 0.0, 0.0, 8.0],
        [0.0, 2.0, 5.0, 1.0, 1.0, 9.0],
    ]
    with pytest.raises(RuntimeError, match="size"):
        copy_each([target[:, 0]], [torch.zeros(2)])
