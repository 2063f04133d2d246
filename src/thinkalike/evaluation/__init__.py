"""What models, stitches, classifiers and autoencoders lose on text, without training; and what tokens alone explain."""

from thinkalike.evaluation.bits_per_byte import (
    BITS,
    alignment_scalars,
    bits_columns,
    bytes_by_document,
    document_bytes,
    readable_bytes,
)
from thinkalike.evaluation.classifiers import (
    ClassLosses,
    IdentityStitches,
    check_alike,
    check_labels,
    class_losses,
    identity_stitches,
    predicted_classes,
)
from thinkalike.evaluation.intervals import document_numbers, ends_of, number_of_documents, with_ends
from thinkalike.evaluation.language import BATCH_TOKENS, held_out_loss, masked_losses, next_token_losses, rows_at_once
from thinkalike.evaluation.likeness import Likeness, LikenessBatch, LikenessSums, codes_of, likeness_of
from thinkalike.evaluation.reports import report_share, rows_of_moments
from thinkalike.evaluation.saes import (
    Kept,
    SiteStates,
    SplicedLosses,
    kept_by_document,
    site_states,
    spliced_losses,
    spread_by_document,
    states_after,
)
from thinkalike.evaluation.stitches import (
    LayerPair,
    Maps,
    Reader,
    document_sums,
    last_states,
    state_moments,
    states_onwards,
)
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans, bigrams
from thinkalike.evaluation.unexplained import UNEXPLAINED, ResidualSums, residual_sums, unexplained_variance
from thinkalike.evaluation.verdicts import STATED, VERDICTS, Thresholds, verdict

__all__ = [
    "BATCH_TOKENS",
    "BITS",
    "STATED",
    "UNEXPLAINED",
    "VERDICTS",
    "BigramMeans",
    "ClassLosses",
    "IdentityStitches",
    "Kept",
    "LayerPair",
    "Likeness",
    "LikenessBatch",
    "LikenessSums",
    "Maps",
    "Reader",
    "ResidualSums",
    "SiteStates",
    "SplicedLosses",
    "Thresholds",
    "TokenMeans",
    "alignment_scalars",
    "bigrams",
    "bits_columns",
    "bytes_by_document",
    "check_alike",
    "check_labels",
    "class_losses",
    "codes_of",
    "document_bytes",
    "document_numbers",
    "document_sums",
    "ends_of",
    "held_out_loss",
    "identity_stitches",
    "kept_by_document",
    "last_states",
    "likeness_of",
    "masked_losses",
    "next_token_losses",
    "number_of_documents",
    "predicted_classes",
    "readable_bytes",
    "report_share",
    "residual_sums",
    "rows_at_once",
    "rows_of_moments",
    "site_states",
    "spliced_losses",
    "spread_by_document",
    "state_moments",
    "states_after",
    "states_onwards",
    "unexplained_variance",
    "verdict",
    "with_ends",
]
