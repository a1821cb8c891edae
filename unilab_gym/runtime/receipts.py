"""The consumer's side of receipts: each is used once, in order, from the right producer."""

from __future__ import annotations

from unilab_gym.backends.base import StepReceipt
from unilab_gym.errors import ReceiptError

__all__ = ["ReceiptLedger", "StepReceipt"]


class ReceiptLedger:
    """Accepts the receipts of one producer in growing order."""

    def __init__(self, producer: int) -> None:
        """Expects receipts of that producer."""
        self._producer = producer
        self._last = 0

    def accept(self, receipt: StepReceipt) -> None:
        """Consumes a receipt and orders the current CUDA stream after it.

        Raises:
            ReceiptError: If it comes from another producer, is repeated or stale.
        """
        if receipt.producer != self._producer:
            raise ReceiptError(
                f"receipt of producer {receipt.producer}, expected producer {self._producer}"
            )
        if receipt.sequence <= self._last:
            kind = "repeated" if receipt.sequence == self._last else "stale"
            raise ReceiptError(
                f"{kind} receipt {receipt.sequence} ({receipt.operation}); last was {self._last}"
            )
        self._last = receipt.sequence
        receipt.wait()
