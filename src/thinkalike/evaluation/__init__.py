"""What models, stitches and classifiers lose on text, without any training."""

from thinkalike.evaluation.bits_per_byte import (
    BITS,
    alignment_scalars,
    bits_columns,
    bytes_by_document,
    document_bytes,
    readable_bytes,
)
from thinkalike.evaluation.classifiers import ClassLosses, check_labels, class_losses, identity_stitches
from thinkalike.evaluation.intervals import document_numbers, number_of_documents, with_ends
from thinkalike.evaluation.language import held_out_loss, masked_losses, next_token_losses, rows_at_once
from thinkalike.evaluation.reports import report_share, rows_of_moments
from thinkalike.evaluation.stitches import LayerPair, Maps, document_sums, last_states, state_moments

__all__ = [
    "BITS",
    "ClassLosses",
    "LayerPair",
    "Maps",
    "alignment_scalars",
    "bits_columns",
    "bytes_by_document",
    "check_labels",
    "class_losses",
    "document_bytes",
    "document_numbers",
    "document_sums",
    "held_out_loss",
    "identity_stitches",
    "last_states",
    "masked_losses",
    "next_token_losses",
    "number_of_documents",
    "readable_bytes",
    "report_share",
    "rows_at_once",
    "rows_of_moments",
    "state_moments",
    "with_ends",
]
