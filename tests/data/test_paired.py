"""Rows of two tokenizers: each target token gets the state of the source token that it is aligned with."""

import numpy as np
import pytest
import torch

import tiny
from thinkalike.data.paired import NO_TEXT, AlignedRows, PairedReader, SourceTokenizer
from thinkalike.data.rows import TokenRows

TEXTS = ["abab habab cab", "cab ab", "habab abab ab cab", "ab"]


def aligned_rows(width, target_bos, source_bos):
    """Return some documents packed in rows of so many tokens and aligned, with the streams of their tokens."""
    source = SourceTokenizer("source", tiny.other_tokenizer(), source_bos, 64)
    reader = PairedReader(tiny.tokenizer(), source, target_bos)
    ranges = list(reader(TEXTS))
    numbers = torch.tensor([number for each in ranges for number in each], dtype=torch.int32)
    owners = torch.tensor([owner for owner, each in enumerate(ranges) for _ in each], dtype=torch.int32)
    count = len(numbers) // width * width
    numbers, owners = numbers[:count].view(-1, width), owners[:count].view(-1, width)
    if target_bos:
        numbers = torch.nn.functional.pad(numbers, (1, 0), value=NO_TEXT)
        owners = torch.nn.functional.pad(owners, (1, 0), value=-1)
    streams = reader.streams()
    aligned = AlignedRows.of(TokenRows(numbers, owners), reader, streams)
    return aligned, aligned.paired_rows(reader, streams), streams


@pytest.mark.parametrize(("target_bos", "source_bos"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("width", [3, 5, 8])
def test_each_token_stands_at_its_source_token_also_the_last_of_its_document_in_a_row(width, target_bos, source_bos):
    aligned, rows, streams = aligned_rows(width, target_bos, source_bos)
    numbers = aligned.packed.tokens[:, int(target_bos) :].numpy()
    positions = aligned.positions[:, int(target_bos) :]
    assert positions.min() >= 0
    assert positions.max() < aligned.source_width == rows.source.tokens.shape[1]
    in_rows = np.arange(len(numbers))[:, None]
    has_source = (aligned.offsets >= 0).reshape(numbers.shape)
    tokens = rows.source.tokens.numpy()[in_rows, positions]
    assert (tokens == streams.source_ids[streams.aligned[numbers]])[has_source].all()
    documents = rows.source.documents.numpy()[in_rows, positions]
    own = aligned.packed.documents[:, int(target_bos) :].numpy()
    assert (documents == own)[has_source].all(), "and no token of the padding or of the next document"
    assert (documents != own)[~has_source].all()

    is_last = np.ones(numbers.shape, bool)
    is_last[:, :-1] = own[:, 1:] != own[:, :-1]
    assert has_source[is_last].mean() > 0.5, "control: last tokens of documents in rows are among them"
