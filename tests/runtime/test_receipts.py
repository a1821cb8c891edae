"""Receipts are used once, in order, from the right producer."""

import pytest
import torch
from helpers.probe import build, probe_cfg, started, zero_action

from unilab_gym.backends.base import StepReceipt
from unilab_gym.errors import ReceiptError
from unilab_gym.runtime.receipts import ReceiptLedger


def test_growing_sequences_are_accepted_with_gaps():
    ledger = ReceiptLedger(producer=7)
    for sequence in (1, 2, 5):
        ledger.accept(StepReceipt(sequence, 7, "step"))
    ledger.accept(StepReceipt(6, 7, "reset"))


@pytest.mark.parametrize(
    ("receipt", "message"),
    [
        (StepReceipt(4, 7, "step"), r"repeated receipt 4 \(step\); last was 4"),
        (StepReceipt(2, 7, "reset"), r"stale receipt 2 \(reset\); last was 4"),
        (StepReceipt(9, 8, "step"), r"receipt of producer 8, expected producer 7"),
    ],
)
def test_repeated_stale_and_foreign_ones_are_refused(receipt, message):
    ledger = ReceiptLedger(producer=7)
    ledger.accept(StepReceipt(4, 7, "step"))
    with pytest.raises(ReceiptError, match=message):
        ledger.accept(receipt)
    ledger.accept(StepReceipt(5, 7, "step"))  # the refusal changed nothing


def test_an_accepted_receipt_is_waited_for_and_a_refused_one_is_not():
    waited = []

    class Event:
        device = "here"

        def wait(self, stream):
            waited.append(stream)

    ledger = ReceiptLedger(producer=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
        ledger.accept(StepReceipt(1, 1, "step", Event()))
        assert waited == ["stream of here"]
        with pytest.raises(ReceiptError):
            ledger.accept(StepReceipt(1, 1, "step", Event()))
        assert waited == ["stream of here"]


def test_the_runtime_refuses_what_another_environment_produced(tmp_path):
    env, other = started(probe_cfg(tmp_path)), build(probe_cfg(tmp_path))
    assert env.backend.producer != other.backend.producer
    foreign = other.backend.step(other.rt.actions.ctrl, None)
    with pytest.raises(ReceiptError, match=f"producer {other.backend.producer}, expected"):
        env.rt.receipts.accept(foreign)
    env.step(zero_action(env))
    env.close()
    other.close()


def test_a_step_behind_the_runtimes_back_is_in_order_but_cannot_be_used_twice(tmp_path):
    env = started(probe_cfg(tmp_path))
    receipt = env.backend.step(env.rt.actions.ctrl, None)
    env.step(zero_action(env))  # newer receipts were accepted since
    with pytest.raises(ReceiptError, match=f"stale receipt {receipt.sequence}"):
        env.rt.receipts.accept(receipt)
    env.close()
